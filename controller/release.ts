/**
 * Lets go of every FencedJob when the controller was uninstalled: nobody is left who would take the finalizers away, and a namespace
 * with one of them could never be deleted (D07). Does NOT close a fence: the sidecars close theirs at their own end.
 */
import type { FencedJob } from "./api/status.ts";
import { FINALIZER, withoutFinalizer } from "./finalizer.ts";
import { type KubeApi, RESOURCES } from "./kube/api.ts";
import { isNotServed, unlessMoved } from "./kube/errors.ts";
import type { KubeObject } from "./kube/objects.ts";

/** Returns how many had it. Those that change meanwhile are met again by the next pass. */
export async function releaseFencedJobs(api: KubeApi, namespace?: string): Promise<number> {
  let released = 0;
  for (;;) {
    const selection = namespace === undefined ? {} : { namespace };
    const list = api.list<FencedJob & KubeObject>(RESOURCES.fencedJobs, selection);
    const { items } = await list.catch((error) => {
      // Who deletes the CRD first has no FencedJob left.
      if (isNotServed(error)) return { items: [] };
      throw error;
    });
    const held = items.filter(({ metadata }) => metadata.finalizers?.includes(FINALIZER));
    if (!held.length) return released;
    for (const job of held) {
      if (await unlessMoved(api.update(RESOURCES.fencedJobs, withoutFinalizer(job)))) released++;
    }
  }
}
