/** What one reconcile looks at: gathered by I/O, read by `decide`, which does none. */

import { z } from "zod";
import type { LeaseRecord } from "../lease/record.ts";
import type { LastWords } from "../lease/report.ts";
import { parseLastWords } from "../lease/report.ts";
import type { Reason } from "./api/reasons.ts";
import type { SpecVerdict } from "./api/spec.ts";
import type { FencedJobStatus } from "./api/status.ts";
import type { ObjectMeta } from "./kube/objects.ts";

export const JOB_LABEL = "fencedjob.dev/job";
export const ATTEMPT_LABEL = "fencedjob.dev/attempt";
/** What of the FencedJob's spec the pod was made from: a digest. */
export const SPEC_ANNOTATION = "fencedjob.dev/made-from";
/** Whether the pod's application is started while it is a candidate: `Started`, `NotStarted`. */
export const APPLICATION_ANNOTATION = "fencedjob.dev/application";
export const SIDECAR_NAME = "fencedjob";
/** What the sidecar is told. */
export const SIDECAR_ENV = "FENCEDJOB_SIDECAR";

export type TemplateVerdict = { ok: true } | { ok: false; reason: Reason; message: string };

export interface PodView {
  readonly name: string;
  readonly uid: string;
  readonly attempt: number;
  readonly phase: "Pending" | "Running" | "Succeeded" | "Failed" | "Unknown";
  readonly node: string | undefined;
  readonly deleting: boolean;
  /** Made from something else than the spec says now. */
  readonly outdated: boolean;
  /** A container other than the sidecar has run: the pod may have done work. */
  readonly applicationStarted: boolean;
  /** The application is there now: its containers run, or have ended well, and none waits to be started again. */
  readonly applicationRuns: boolean;
  /** Its application is started while the pod is a candidate. */
  readonly startedEarly: boolean;
  /** All containers of the application have ended; the pod's phase may not say so yet. */
  readonly applicationEnded: boolean;
  /** The sidecar's process runs: the pod may be made owner. */
  readonly sidecarRunning: boolean;
  /** What a pod that does not run yet waits for, in words. */
  readonly waitingFor: string;
  /** A container that cannot start, or not again: its reason, and in words. */
  readonly trouble: { readonly reason: string; readonly text: string } | null;
  /** How a pod that ended badly ended, in words. */
  readonly failure: string;
  /**
   * Its application has ended, not well, and is not started again. The phase says so up to two seconds later: it waits for
   * the sidecar's end, and the kubelet looks once a second.
   */
  readonly failed: boolean;
  /** It is being taken away, which says nothing about its work; null: it is not. */
  readonly leaving: Reason | null;
  /** restartPolicy Always: its end is never the job's end. */
  readonly longRunning: boolean;
  /** How often containers that are to end well were started again in place, after they did not. */
  readonly retries: number;
  readonly lastWords: LastWords | null;
  /** As its sidecar was told. */
  readonly databases: readonly { readonly name: string; readonly secretName: string }[];
}

export interface Snapshot {
  readonly job: {
    readonly name: string;
    readonly namespace: string;
    readonly generation: number;
    readonly deleting: boolean;
    /** Kubernetes deletes first what it owns, and has not done that yet: pods, the Lease, the pods' account. */
    readonly inForeground: boolean;
    /** It cannot vanish before its fences are closed. */
    readonly finalized: boolean;
    /** For how long this controller has seen it being deleted, or failing, without an owner that works; 0: it is not. */
    readonly closingMs: number;
  };
  readonly spec: SpecVerdict;
  readonly template: TemplateVerdict;
  readonly status: FencedJobStatus;
  /** All pods controlled by this FencedJob (by UID), also ended ones. */
  readonly pods: readonly PodView[];
  /** Attempts whose pod name is taken by a pod that is not this job's, is ending, or was granted before. */
  readonly burnedAttempts: readonly number[];
  /** Why the API server refused the last pod, while none could be created since, or why none is asked for. */
  readonly creationProblem: string | null;
  /** Until the next pod may be made, as too many were of late; 0: now. */
  readonly creationRestMs: number;
  /** Why the API server refused the Lease for the generation that is reserved. */
  readonly grantProblem: string | null;
  /** The last pod was refused because its namespace is being deleted. */
  readonly namespaceEnding: boolean;
  readonly lease: LeaseRecord | null;
  /** The Lease names a living pod that is not one of `pods`: of an earlier FencedJob of this name. */
  readonly holderElsewhere: boolean;
  /** For how long this controller has seen the Lease unchanged, on its monotonic clock. */
  readonly leaseUnchangedMs: number;
  /** Until the Lease may be claimed for standing unchanged; 0 = now. */
  readonly leaseRemainingMs: number;
  /** The API server's wall time: for records, backoff and deadlines, whichever controller wrote them; never for safety. */
  readonly wallMs: number;
}

/** No owner is wanted. */
export function isClosing({ spec, job, status }: Snapshot): boolean {
  return job.deleting || status.failing !== undefined || (spec.ok && spec.spec.suspend);
}

/** Pods can be made of the present spec. */
export function isAdmitted({ spec, template }: Snapshot): boolean {
  return spec.ok && template.ok;
}

export function isAlive(pod: PodView): boolean {
  return pod.phase !== "Succeeded" && pod.phase !== "Failed";
}

interface RawContainer {
  name: string;
  restartPolicy?: string;
  env?: { name: string; value?: string }[];
}

interface RawContainerStatus {
  name: string;
  restartCount?: number;
  state?: {
    waiting?: { reason?: string; message?: string };
    running?: object;
    terminated?: { exitCode?: number; reason?: string; message?: string };
  };
}

export interface RawPod {
  metadata: ObjectMeta;
  spec?: {
    nodeName?: string;
    restartPolicy?: string;
    initContainers?: RawContainer[];
    containers?: RawContainer[];
    [other: string]: unknown;
  };
  status?: {
    phase?: string;
    reason?: string;
    message?: string;
    conditions?: { type: string; status: string; reason?: string; message?: string }[];
    initContainerStatuses?: RawContainerStatus[];
    containerStatuses?: RawContainerStatus[];
  };
}

const PHASES = ["Pending", "Running", "Succeeded", "Failed"] as const;

/** `madeFrom`: what a pod would be made from now; null if that is not known. */
export function viewPod(pod: RawPod, madeFrom: string | null): PodView {
  const status = pod.status ?? {};
  const containers = [...(status.initContainerStatuses ?? []), ...(status.containerStatuses ?? [])];
  const sidecar = containers.find(({ name }) => name === SIDECAR_NAME);
  const others = containers.filter((one) => one !== sidecar);
  return {
    name: pod.metadata.name,
    uid: pod.metadata.uid ?? "",
    attempt: attemptOf(pod),
    phase: PHASES.find((phase) => phase === status.phase) ?? "Unknown",
    node: pod.spec?.nodeName,
    deleting: pod.metadata.deletionTimestamp !== undefined,
    outdated: madeFrom !== null && (pod.metadata.annotations?.[SPEC_ANNOTATION] ?? madeFrom) !== madeFrom,
    applicationStarted: others.some(
      ({ state, restartCount = 0 }) => state?.running || state?.terminated || restartCount,
    ),
    applicationRuns: areThere(status.containerStatuses ?? []),
    startedEarly: pod.metadata.annotations?.[APPLICATION_ANNOTATION] === "Started",
    applicationEnded: areOver(status.containerStatuses ?? []),
    sidecarRunning: sidecar?.state?.running !== undefined,
    waitingFor: waitingFor(pod),
    trouble: troubleOf(pod),
    failure: failureOf(pod),
    failed: status.phase === "Failed" || applicationFailed(pod),
    leaving: leavingOf(pod),
    longRunning: pod.spec?.restartPolicy === "Always",
    retries: pod.spec?.restartPolicy === "OnFailure" ? retriesOf(others, pod) : 0,
    lastWords: parseLastWords(sidecar?.state?.terminated?.message),
    databases: databasesOf(pod),
  };
}

/** Somebody else's pod may have been told anything. */
function databasesOf({ spec }: RawPod): PodView["databases"] {
  const containers = [...(spec?.initContainers ?? []), ...(spec?.containers ?? [])];
  const sidecar = containers.find(({ name }) => name === SIDECAR_NAME);
  const told = sidecar?.env?.find(({ name }) => name === SIDECAR_ENV)?.value ?? "";
  try {
    return toldSchema.parse(JSON.parse(told)).databases;
  } catch {
    return [];
  }
}

const toldSchema = z.object({ databases: z.array(z.object({ name: z.string(), secretName: z.string() })) });

const areOver = (containers: RawContainerStatus[]): boolean =>
  containers.length > 0 && containers.every(({ state }) => state?.terminated !== undefined);

const areThere = (containers: RawContainerStatus[]): boolean =>
  containers.some(({ state }) => state?.running) &&
  containers.every(({ state }) => state?.running || state?.terminated?.exitCode === 0);

/** A native sidecar of the template is started again whenever it ends: that says nothing about the work. */
function retriesOf(containers: RawContainerStatus[], { spec }: RawPod): number {
  const sidecars = (spec?.initContainers ?? []).filter(({ restartPolicy }) => restartPolicy === "Always");
  const tries = containers.filter(({ name }) => !sidecars.some((sidecar) => sidecar.name === name));
  return tries.reduce((sum, { restartCount = 0 }) => sum + restartCount, 0);
}

/** 0 when the label was edited: then it does not match the name, which cannot be. */
function attemptOf({ metadata: { name, labels } }: RawPod): number {
  const attempt = labels?.[ATTEMPT_LABEL] ?? "";
  return /^[1-9]\d{0,8}$/.test(attempt) && name.endsWith(`-${attempt}`) ? Number(attempt) : 0;
}

function waitingFor(pod: RawPod): string {
  const status = pod.status ?? {};
  const unscheduled = status.conditions?.find(({ type, status }) => type === "PodScheduled" && status === "False");
  if (unscheduled) return `scheduling: ${unscheduled.message ?? unscheduled.reason ?? "no node yet"}`;
  if (!pod.spec?.nodeName) return "scheduling";
  return troubleOf(pod)?.text ?? "its containers are being created";
}

function troubleOf({ status = {} }: RawPod): PodView["trouble"] {
  for (const { name, state } of [...(status.initContainerStatuses ?? []), ...(status.containerStatuses ?? [])]) {
    const { reason, message } = state?.waiting ?? {};
    if (reason && reason !== "PodInitializing" && reason !== "ContainerCreating") {
      return { reason, text: `container ${name}: ${reason}${message ? `, ${message}` : ""}` };
    }
  }
  return null;
}

function applicationFailed({ spec, status = {} }: RawPod): boolean {
  const ends = (status.containerStatuses ?? []).map(({ state }) => state?.terminated);
  if (spec?.restartPolicy !== "Never" || ends.length === 0 || !ends.every((end) => end !== undefined)) return false;
  return ends.some((end) => (end.exitCode ?? 0) !== 0);
}

function failureOf(pod: RawPod): string {
  const status = pod.status ?? {};
  if (status.reason) return `${status.reason}${status.message ? `: ${status.message}` : ""}`;
  // The sidecar's own exit code says nothing about the work (C07).
  const ended = (status.containerStatuses ?? []).filter(({ state }) => (state?.terminated?.exitCode ?? 0) !== 0);
  return ended
    .map(
      ({ name, state }) =>
        `container ${name} ended with exit code ${state?.terminated?.exitCode} (${state?.terminated?.reason ?? "Error"})`,
    )
    .join("; ");
}

/** Reasons of the pod's condition DisruptionTarget (Kubernetes ≥ 1.26) → ours. */
const DISRUPTIONS: Readonly<Record<string, Reason>> = {
  PreemptionByScheduler: "Preempted",
  EvictionByEvictionAPI: "Evicted",
  TerminationByKubelet: "Evicted",
  DeletionByTaintManager: "NodeLost",
  DeletionByPodGC: "NodeLost",
};

/** Why a pod is being taken away. */
export function leavingOf({ metadata, status = {} }: RawPod): Reason | null {
  const disruption = status.conditions?.find(({ type, status }) => type === "DisruptionTarget" && status === "True");
  if (disruption) return DISRUPTIONS[disruption.reason ?? ""] ?? "Evicted";
  return metadata.deletionTimestamp === undefined ? null : "PodDeleted";
}
