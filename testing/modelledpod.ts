/**
 * A candidate without application and database: a pod's entry in its status as the kubelet would make it, and the sidecar's
 * holder. For tests of who owns, and when, on a real API server.
 */
import { type KubeApi, RESOURCES } from "../controller/kube/api.ts";
import type { KubeObject, RawObject } from "../controller/kube/objects.ts";
import { SIDECAR_NAME } from "../controller/snapshot.ts";
import type { LeaseClient } from "../lease/client.ts";
import { Holder } from "../lease/holder.ts";
import { Permit } from "../lease/permit.ts";
import type { Grant } from "../lease/record.ts";
import { formatReport } from "../lease/report.ts";
import type { LeaseTiming } from "../lease/timing.ts";
import { systemClock } from "../platform/clock.ts";
import { silentLogger } from "../platform/log.ts";
import { systemRandom } from "../platform/random.ts";

export interface ModelledPod {
  readonly name: string;
  readonly permit: Permit;
  /** Resolves when the Lease names this pod. */
  readonly granted: Promise<Grant>;
  /** Ends its renewals without a word, as a freeze does. */
  freeze(): void;
  /** Its containers end. */
  fail(): Promise<void>;
  /** With its node: the object is gone. */
  remove(): Promise<void>;
}

/** Lets the pod run that a controller has created. */
export async function runPod(
  api: KubeApi,
  lease: LeaseClient,
  pod: KubeObject,
  timing: LeaseTiming,
): Promise<ModelledPod> {
  const { name, namespace, uid = "" } = pod.metadata;
  const where = { ...(namespace !== undefined && { namespace }), name };
  const stop = new AbortController();
  const permit = new Permit();
  let generation = 0;
  const holder = new Holder({
    api: lease,
    clock: systemClock,
    random: systemRandom,
    log: silentLogger,
    timing,
    permit,
    holder: uid,
    report: () => reportOf(generation),
  });
  const say = (phase: string): Promise<RawObject> =>
    api.patch(
      RESOURCES.pods,
      where,
      {
        status: {
          phase,
          initContainerStatuses: [
            { name: SIDECAR_NAME, image: "x", imageID: "x", ready: true, restartCount: 0, state: { running: {} } },
          ],
        },
      },
      { subresource: "status" },
    );
  const granted = holder.waitForGrant(stop.signal);
  granted
    .then((grant) => {
      generation = grant.generation;
      permit.open();
      return holder.hold(grant, stop.signal);
    })
    .catch(() => {});
  await say("Running");
  const freeze = (): void => stop.abort(new Error("frozen"));
  return {
    name,
    permit,
    granted,
    freeze,
    fail: async () => {
      freeze();
      await say("Failed");
    },
    remove: async () => {
      freeze();
      await api.delete(RESOURCES.pods, where, { gracePeriodSeconds: 0, preconditions: { uid } });
    },
  };
}

/** As of a raise that took no time. */
function reportOf(generation: number): string {
  const raised = { previousGeneration: null, incarnation: "x", tookMs: 1, sessionsEnded: 0, closed: false };
  return formatReport({
    generation,
    fences: [{ database: "ledger", generation, ...raised }],
    failures: [],
    served: true,
  });
}
