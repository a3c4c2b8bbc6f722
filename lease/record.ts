/**
 * The Lease as the protocol sees it. Raw JSON in and out: typed models drop fields that they do not know.
 *
 * `leaseTransitions` is for people only: it restarts when a Lease is deleted. The generation is an annotation.
 */
import type { Wall } from "../platform/clock.ts";
import { microTime, nextMicroTime } from "./time.ts";

export const GENERATION_ANNOTATION = "fencedjob.dev/generation";
const HOLDER_POD_ANNOTATION = "fencedjob.dev/holder-pod";
export const REPORT_ANNOTATION = "fencedjob.dev/report";
/** On a Lease by which processes elect, and no job's: it has a generation, too. Stays on it when nobody leads. */
export const ELECTION_LABEL = "fencedjob.dev/election";

/** An int32 at the API server: one more, after somebody's edit, would be refused for ever. */
const TRANSITIONS_MAX = 2 ** 31 - 1;

/** A Lease as the API server sends it; fields that the protocol does not know are kept. */
export interface RawLease {
  apiVersion?: string;
  kind?: string;
  metadata: {
    name?: string;
    namespace?: string;
    uid?: string;
    resourceVersion?: string;
    labels?: Record<string, string>;
    annotations?: Record<string, string>;
    [other: string]: unknown;
  };
  spec?: {
    holderIdentity?: string | null;
    leaseDurationSeconds?: number;
    acquireTime?: string | null;
    renewTime?: string | null;
    leaseTransitions?: number;
    [other: string]: unknown;
  };
  [other: string]: unknown;
}

export interface LeaseRecord {
  readonly uid: string;
  readonly resourceVersion: string;
  /** Pod UID; null when released. */
  readonly holder: string | null;
  readonly holderPod: string | null;
  /** null when absent or not an integer 1 … 2^53−1: such a record names no generation that anybody holds. */
  readonly generation: number | null;
  readonly durationMs: number;
  readonly renewTime: string | null;
  /** No sign of a FencedJob on it: it is somebody else's, who chose the same name. */
  readonly foreign: boolean;
  /** JSON of the holder's sidecar (`lease/report.ts`), unparsed. */
  readonly report: string | null;
}

export function readLease(raw: RawLease): LeaseRecord {
  const annotations = raw.metadata.annotations ?? {};
  const spec = raw.spec ?? {};
  const owners = raw.metadata.ownerReferences as readonly { kind?: string }[] | undefined;
  const { labels } = raw.metadata;
  const isNoJobs = annotations[GENERATION_ANNOTATION] === undefined || labels?.[ELECTION_LABEL] !== undefined;
  return {
    uid: raw.metadata.uid ?? "",
    resourceVersion: raw.metadata.resourceVersion ?? "",
    holder: spec.holderIdentity || null,
    holderPod: annotations[HOLDER_POD_ANNOTATION] ?? null,
    generation: parseGeneration(annotations[GENERATION_ANNOTATION]),
    durationMs: (spec.leaseDurationSeconds ?? 0) * 1000,
    renewTime: spec.renewTime ?? null,
    foreign: isNoJobs && !owners?.some(({ kind }) => kind === "FencedJob"),
    report: annotations[REPORT_ANNOTATION] ?? null,
  };
}

/** Strict: the decimal form only, so that `1e3`, `0x7` or ` 7` in an edited Lease is nobody's generation. */
export function parseGeneration(text: string | undefined): number | null {
  if (text === undefined || !/^[1-9]\d{0,15}$/.test(text)) return null;
  const generation = Number(text);
  return Number.isSafeInteger(generation) ? generation : null;
}

/** A holder with its generation; INV-6 compares both. */
export interface Grant {
  readonly holder: string;
  readonly generation: number;
}

/** Whose the record just read is, from the holder's point of view. A missing Lease is loss (INV-6). */
export function isOurs(record: LeaseRecord | null, me: Grant): boolean {
  return record !== null && record.holder === me.holder && record.generation === me.generation;
}

/**
 * The Lease with its renewal time moved on and the report replaced. Only for a record that is ours; asserted here
 * again, since a renewal that changes holder or generation would be a theft (INV-6).
 */
export function renewedLease(raw: RawLease, me: Grant, wall: Wall, report: string): RawLease {
  assertOurs(raw, me);
  return {
    ...raw,
    metadata: { ...raw.metadata, annotations: { ...raw.metadata.annotations, [REPORT_ANNOTATION]: report } },
    spec: { ...raw.spec, renewTime: nextMicroTime(wall, raw.spec?.renewTime ?? null) },
  };
}

/** The Lease without a holder; holder and generation must be ours on the record just read (INV-6). */
export function releasedLease(raw: RawLease, me: Grant, wall: Wall, report: string): RawLease {
  const renewed = renewedLease(raw, me, wall, report);
  return { ...renewed, spec: { ...renewed.spec, holderIdentity: "" } };
}

export interface GrantedLease extends Grant {
  readonly name: string;
  readonly namespace: string;
  readonly holderPod: string;
  readonly durationMs: number;
  readonly labels: Record<string, string>;
  readonly ownerReferences: readonly Record<string, unknown>[];
}

/** The Lease that grants `grant`: a new object, or `raw` (the observed one, conditional on its version) changed. */
export function grantedLease(raw: RawLease | null, grant: GrantedLease, wall: Wall): RawLease {
  const { [REPORT_ANNOTATION]: _oldReport, ...annotations } = raw?.metadata.annotations ?? {};
  const now = microTime(wall);
  return {
    apiVersion: "coordination.k8s.io/v1",
    kind: "Lease",
    metadata: {
      ...raw?.metadata,
      name: grant.name,
      namespace: grant.namespace,
      labels: { ...raw?.metadata.labels, ...grant.labels },
      annotations: {
        ...annotations,
        [GENERATION_ANNOTATION]: String(grant.generation),
        [HOLDER_POD_ANNOTATION]: grant.holderPod,
      },
      ownerReferences: grant.ownerReferences,
    },
    spec: {
      ...raw?.spec,
      holderIdentity: grant.holder,
      leaseDurationSeconds: grant.durationMs / 1000,
      acquireTime: now,
      renewTime: now,
      leaseTransitions: Math.min((raw?.spec?.leaseTransitions ?? 0) + 1, TRANSITIONS_MAX),
    },
  };
}

function assertOurs(raw: RawLease, me: Grant): void {
  if (!isOurs(readLease(raw), me)) {
    throw new Error(`INV-6: Lease ${raw.metadata.name} is not held by ${me.holder} with generation ${me.generation}`);
  }
}
