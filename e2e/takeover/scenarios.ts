/** What takes an owner away, each as data: how it is caused, what is measured from, what FencedJob is expected to say. */
import { RESOURCES } from "../../controller/kube/api.ts";
import type { RawObject } from "../../controller/kube/objects.ts";
import { until } from "../../testing/until.ts";
import { cutFromApi, cutNode, exhaustMemory, killInPod } from "../cluster/faults.ts";
import { type Cause, type Job, mendedAfter, SEAT, type Stage, type Taken } from "./stage.ts";

export interface Scenario {
  readonly id: string;
  /** For people: what happens. */
  readonly cause: string;
  /** For people: what FencedJob does about it. */
  readonly effect: string;
  /** Of the ownership that ends, in the status. */
  readonly reason: string;
  /** Beyond the lease, where that has to run out first; absent: nothing was aimed at. */
  readonly aimMs?: number;
  /** Elsewhere the lease is so long that whoever waited for it would be found out. */
  readonly waitsForLease?: boolean;
  /** Measured from the owner's last row: the application itself is the cause. */
  readonly sinceLastRow?: boolean;
  readonly job?: (stage: Stage) => Omit<Job, "name"> | Promise<Omit<Job, "name">>;
  /** Its first pod starts on the node that may be lost. */
  readonly startsWhereItMayBeLost?: boolean;
  /** Once the owner is there: what the cause needs beside it. */
  readonly prepare?: (stage: Stage, name: string) => Promise<void>;
  readonly act: (stage: Stage, name: string) => Cause;
  /** What else is to be so, once the next owner writes. */
  readonly verify?: (stage: Stage, name: string, taken: Taken) => Promise<void>;
}

const CRASH_MS = 4_000;
const STANDBY_MS = 2_000;
const STARTED_MS = 500;
const GRACE_SECONDS = 5;
const oneStandby = { standbys: { count: 1 } };
const oneStarted = { standbys: { count: 1, application: "Started" } };

const standbyRuns = (stage: Stage, name: string): Promise<void> => stage.standbyRuns(name, "sidecar");
const standbyIsHeld = (stage: Stage, name: string): Promise<void> => stage.standbyRuns(name, "application");
export const exitWith =
  (code: number) =>
  (stage: Stage): Cause =>
  ({ uid }) =>
    stage.ledger.tellToExit(uid, code);
export const deletePod =
  (gracePeriodSeconds?: number) =>
  ({ scene }: Stage): Cause =>
  ({ pod }) => {
    const key = { namespace: scene.namespace, name: pod };
    return scene.api.delete(RESOURCES.pods, key, gracePeriodSeconds === undefined ? {} : { gracePeriodSeconds });
  };
const evict =
  ({ scene }: Stage): Cause =>
  async ({ pod }) => {
    const metadata = { namespace: scene.namespace, name: pod };
    const eviction = { apiVersion: "policy/v1", kind: "Eviction", metadata };
    await scene.api.create(RESOURCES.pods, eviction as RawObject, { subresource: "eviction" });
  };
const freeze =
  ({ scene }: Stage): Cause =>
  async ({ uid }) => {
    await scene.cluster.freeze(uid);
    return () => scene.cluster.thaw(uid);
  };

const onNodeThatStays = ({ stays }: Stage): Omit<Job, "name"> => ({
  podSpec: { nodeSelector: { "kubernetes.io/hostname": stays } },
});

/** What comes at once; one after the other, each with the machine for itself. */
export const AT_ONCE: readonly Scenario[] = [
  {
    id: "crash",
    cause: "the application exits with an error",
    effect:
      "its sidecar gives the Lease back, the failure counts, and the next pod starts: after a first failure at once, after the second in 2 s, …",
    reason: "PodFailed",
    aimMs: CRASH_MS,
    sinceLastRow: true,
    act: exitWith(1),
  },
  {
    id: "crash-standby",
    cause: "the same, with a standby",
    effect: "the standby, whose sidecar runs already, is granted when the Lease is given back",
    reason: "PodFailed",
    aimMs: STANDBY_MS,
    sinceLastRow: true,
    job: () => ({ spec: oneStandby }),
    prepare: standbyRuns,
    act: exitWith(1),
  },
  {
    id: "crash-started",
    cause: "the same, with a standby whose application is started",
    effect: "the application of the standby, held at its first connection, is let in",
    reason: "PodFailed",
    aimMs: STARTED_MS,
    sinceLastRow: true,
    job: () => ({ spec: oneStarted }),
    prepare: standbyIsHeld,
    act: exitWith(1),
  },
  {
    id: "deleted",
    cause: "`kubectl delete pod`; the application ends at SIGTERM",
    effect: "a candidate is prepared while the old pod ends; the Lease is given back after the application's end",
    reason: "PodDeleted",
    aimMs: CRASH_MS,
    act: deletePod(),
  },
  {
    id: "deleted-standby",
    cause: "the same, with a standby",
    effect: "the standby is granted when the Lease is given back and the pod has ended",
    reason: "PodDeleted",
    aimMs: STANDBY_MS,
    job: () => ({ spec: oneStandby }),
    prepare: standbyRuns,
    act: deletePod(),
  },
  {
    id: "deleted-started",
    cause: "the same, with a standby whose application is started",
    effect:
      "its application, held at its first connection, is let in when the Lease is given back and the pod has ended",
    reason: "PodDeleted",
    aimMs: STARTED_MS,
    job: () => ({ spec: oneStarted }),
    prepare: standbyIsHeld,
    act: deletePod(),
  },
  {
    id: "deleted-long-running",
    cause: "`kubectl delete pod` of a long-running owner (restartPolicy Always)",
    effect: "the next pod is granted as soon as the Lease is given back",
    reason: "PodDeleted",
    aimMs: CRASH_MS,
    job: () => ({ podSpec: { restartPolicy: "Always" } }),
    act: deletePod(),
  },
  {
    id: "deleted-by-force",
    cause: "`kubectl delete pod --grace-period=0 --force`: the object is gone while its processes still run",
    effect: "the pod is gone, so nobody is waited for; the fence stops what still runs",
    reason: "PodDeleted",
    aimMs: CRASH_MS,
    act: deletePod(0),
  },
  {
    id: "evicted",
    // A02, D14
    cause: "evicted through the API",
    effect: "as a deletion; the history says Evicted, and it does not count as a failure",
    reason: "Evicted",
    aimMs: CRASH_MS,
    act: evict,
  },
  {
    id: "drained",
    // D14
    cause: "its node is drained (cordoned, then evicted)",
    effect: "the candidate starts on another node",
    reason: "Evicted",
    aimMs: CRASH_MS,
    act: (stage) => async (owner, begins) => {
      const { kubectl } = stage.scene.cluster;
      await kubectl(["cordon", owner.node ?? ""]);
      return mendedAfter(
        () => kubectl(["uncordon", owner.node ?? ""]),
        async () => evict(stage)(owner, begins),
      );
    },
  },
  {
    id: "preempted",
    // D14
    cause: "preempted by a pod of higher priority, which works for a second",
    effect: "as an eviction; the candidate waits until its place on the node is free again",
    reason: "Preempted",
    aimMs: CRASH_MS + 2_000,
    job: () => ({
      podSpec: { priorityClassName: "takeover-low" },
      container: { resources: { limits: { [SEAT]: "1" } } },
    }),
    act: (stage) => () => stage.preempt(),
  },
  {
    id: "sidecar-killed",
    cause: "the sidecar's process is killed",
    effect: "it is started again in place, raises no second time (INV-7), and its pod is replaced",
    reason: "RaiseRefused",
    aimMs: CRASH_MS,
    act:
      () =>
      async ({ uid }) =>
        killInPod(uid, "sidecar"),
  },
  {
    id: "sidecar-out-of-memory",
    cause: "the sidecar's container has no memory left, and the kernel kills it (`OOMKilled`)",
    effect: "as its death of any other cause",
    reason: "RaiseRefused",
    aimMs: CRASH_MS,
    act:
      (stage) =>
      async ({ uid, pod }, begins) => {
        await exhaustMemory(uid, "sidecar");
        await begins();
        await until(async () => (await stage.sidecarEnded(pod)) === "OOMKilled", undefined, {
          what: `the sidecar of ${pod} was OOMKilled`,
          pollMs: 20,
        });
      },
  },
  {
    id: "refused",
    // D16
    cause: "the FencedJob is deleted and made anew: its count begins below what the database has accepted",
    effect: "the database refuses the number and names its own, which the next generation is above (INV-8)",
    reason: "RaiseRefused",
    aimMs: CRASH_MS,
    act: (stage, name) => async () => stage.makeAnew(name),
  },
  {
    id: "ignores-sigterm",
    // A02, A05
    cause: `\`kubectl delete pod\` of an application that ignores SIGTERM, with a grace period of ${GRACE_SECONDS} s`,
    effect: "it writes until it is killed: the Lease is not given back before it has ended (A05)",
    reason: "PodDeleted",
    aimMs: GRACE_SECONDS * 1000 + CRASH_MS,
    job: () => ({ onSigterm: "ignore" }),
    act: deletePod(),
  },
];

/** What has to wait for the lease; they wait together. */
export const AFTER_THE_LEASE: readonly Scenario[] = [
  {
    id: "frozen",
    cause: "the whole pod is frozen, as a paused machine",
    effect: "the Lease runs out; the prepared candidate raises the fence and ends the frozen session",
    reason: "LeaseExpired",
    aimMs: CRASH_MS,
    waitsForLease: true,
    job: onNodeThatStays,
    act: freeze,
  },
  {
    id: "cut-from-api",
    // A17
    cause: "the pod's packets to the API server are lost; the database still answers it",
    effect: "it stops its own writes at lease − margin; the Lease runs out; the fence refuses what it sends later",
    reason: "LeaseExpired",
    aimMs: CRASH_MS,
    waitsForLease: true,
    job: onNodeThatStays,
    act:
      () =>
      ({ node = "", ip }) =>
        cutFromApi({ node, ip }),
  },
  {
    id: "cut-while-ending",
    // A10
    cause: "the same while the pod is being deleted and its application ignores SIGTERM",
    effect: "no handler has to run: each message looks at the deadline, and the next owner waits for the Lease only",
    reason: "LeaseExpired",
    aimMs: CRASH_MS,
    waitsForLease: true,
    job: (stage) => {
      const { podSpec } = onNodeThatStays(stage);
      return { podSpec: { ...podSpec, terminationGracePeriodSeconds: 60 }, onSigterm: "ignore" };
    },
    act: (stage) => async (owner, begins) => {
      const mend = await cutFromApi({ node: owner.node ?? "", ip: owner.ip });
      return mendedAfter(mend, async () => deletePod()(stage)(owner, begins));
    },
  },
  {
    id: "node-lost",
    // A17, D15
    cause: "the node is cut off; its pods go on running",
    effect: "the Lease runs out; the candidate was started on another node, where the scheduler could choose",
    reason: "LeaseExpired",
    aimMs: CRASH_MS,
    waitsForLease: true,
    startsWhereItMayBeLost: true,
    act:
      () =>
      ({ node = "" }) =>
        cutNode(node),
  },
];
