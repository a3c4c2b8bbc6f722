/** Whether the API server takes a job's pod: its own checks and policies, in a dry run. */

import { HttpError } from "../platform/http.ts";
import { ensureAccount } from "./account.ts";
import type { FencedJobSpec, JobMeta } from "./api/spec.ts";
import { type KubeApi, RESOURCES } from "./kube/api.ts";
import {
  ApiError,
  isAlreadyExists,
  isDenied,
  isDryRunUnsupported,
  isForbidden,
  isInvalid,
  isQuotaExceeded,
} from "./kube/errors.ts";
import type { KubeObject } from "./kube/objects.ts";
import { buildPod, type SidecarImage } from "./pods.ts";
import type { TemplateVerdict } from "./snapshot.ts";

/** Makes the account of the pods too: without it each pod is refused. Throws what is about the connection, but for an answer that does not come. */
export async function tryPod(
  { api, sidecar, issuer }: { readonly api: KubeApi; readonly sidecar: SidecarImage; readonly issuer: string },
  meta: JobMeta,
  spec: FencedJobSpec,
): Promise<TemplateVerdict> {
  let accountMade = false;
  try {
    await ensureAccount(api, meta, spec);
    accountMade = true;
    const pod = buildPod({ meta, spec, sidecar, issuer }, 0);
    await api.create(RESOURCES.pods, pod as unknown as KubeObject, { dryRun: true, fieldValidation: "Strict" });
    return { ok: true };
  } catch (error) {
    // What cannot be tried is told by the first real pod.
    if (isAlreadyExists(error) || isDryRunUnsupported(error)) return { ok: true };
    // It may be full of this very job's pods, which a refused template would cost their place.
    if (accountMade && isQuotaExceeded(error)) return { ok: true };
    const { message } = error as Error;
    if (isInvalid(error) || isForbidden(error) || isDenied(error))
      return { ok: false, reason: "InvalidTemplate", message };
    // An owner is followed meanwhile: a webhook that is down, or hangs, must not keep its end from being seen.
    const isUnanswered = error instanceof HttpError && error.kind === "timeout";
    if (isUnanswered || (error instanceof ApiError && error.status >= 500))
      return { ok: false, reason: "AdmissionUnavailable", message };
    throw error;
  }
}
