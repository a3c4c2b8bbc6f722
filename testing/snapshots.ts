/** Snapshots for tests of `decide`: a job `billing/run`, its pods `run-<attempt>` and its Lease. */

import { readSpec } from "../controller/api/spec.ts";
import { readStatus } from "../controller/api/status.ts";
import type { Plan } from "../controller/draft.ts";
import type { PodView, Snapshot } from "../controller/snapshot.ts";
import type { LeaseRecord } from "../lease/record.ts";

export const WALL_MS = Date.parse("2026-11-29T13:00:00Z");

export function aSpec(change: object = {}): Snapshot["spec"] {
  return readSpec({
    databases: [{ name: "ledger", secretName: "ledger-db" }],
    template: { spec: { restartPolicy: "Never", containers: [{ name: "app" }] } },
    ...change,
  });
}

export function aPod(attempt: number, change: Partial<PodView> = {}): PodView {
  return {
    name: `run-${attempt}`,
    uid: `uid-${attempt}`,
    attempt,
    phase: "Pending",
    node: "node-1",
    deleting: false,
    outdated: false,
    applicationStarted: false,
    applicationRuns: false,
    startedEarly: false,
    applicationEnded: false,
    sidecarRunning: true,
    waitingFor: "",
    trouble: null,
    failure: "",
    failed: change.phase === "Failed",
    leaving: null,
    longRunning: false,
    retries: 0,
    lastWords: null,
    databases: [],
    ...change,
  };
}

export function aLease(attempt: number, generation: number, change: Partial<LeaseRecord> = {}): LeaseRecord {
  return {
    uid: "lease-1",
    resourceVersion: "10",
    holder: `uid-${attempt}`,
    holderPod: `run-${attempt}`,
    generation,
    durationMs: 10_000,
    renewTime: null,
    foreign: false,
    report: null,
    ...change,
  };
}

export function aSnapshot(change: Partial<Omit<Snapshot, "status">> & { status?: object } = {}): Snapshot {
  const { status, ...rest } = change;
  return {
    job: {
      name: "run",
      namespace: "billing",
      generation: 1,
      deleting: false,
      inForeground: false,
      finalized: true,
      closingMs: 0,
    },
    spec: aSpec(),
    template: { ok: true },
    status: readStatus(status),
    pods: [],
    burnedAttempts: [],
    creationProblem: null,
    creationRestMs: 0,
    grantProblem: null,
    namespaceEnding: false,
    lease: null,
    holderElsewhere: false,
    leaseUnchangedMs: 0,
    leaseRemainingMs: 10_000,
    wallMs: WALL_MS,
    ...rest,
  };
}

export const owner = (attempt: number, generation: number, leaseUID: string | undefined = "lease-1") => ({
  pod: `run-${attempt}`,
  uid: `uid-${attempt}`,
  node: "node-1",
  generation,
  since: "2026-11-29T12:59:00Z",
  ...(leaseUID && { leaseUID }),
});

export const owned = (change: object = {}) => ({ generation: 1, attempt: 1, owner: owner(1, 1), ...change });

export const kinds = (plan: Plan): string[] => plan.actions.map(({ kind }) => kind);
export const condition = (plan: Plan, type: string) => plan.status.conditions.find((one) => one.type === type);

/** What the owner's sidecar says when a raise failed. */
export const failureReport = (failure: object): string =>
  JSON.stringify({
    generation: 1,
    fences: [],
    failures: [
      {
        database: "ledger",
        code: "LF015",
        message: "it does not answer",
        hint: "",
        final: false,
        floor: null,
        ...failure,
      },
    ],
  });
