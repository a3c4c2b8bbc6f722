/** Keeps a FencedJob until its fences are closed. */
import type { FencedJob } from "./api/status.ts";

export const FINALIZER = "fencedjob.dev/fence";
/** Kubernetes' own: what the FencedJob owns is deleted first (`--cascade=foreground`, Argo CD's default). */
export const FOREGROUND = "foregroundDeletion";

export function withFinalizer(job: FencedJob): FencedJob {
  const finalizers = [...(job.metadata.finalizers ?? []), FINALIZER];
  return { ...job, metadata: { ...job.metadata, finalizers } };
}

export function withoutFinalizer(job: FencedJob): FencedJob {
  const finalizers = (job.metadata.finalizers ?? []).filter((name) => name !== FINALIZER);
  return { ...job, metadata: { ...job.metadata, finalizers } };
}
