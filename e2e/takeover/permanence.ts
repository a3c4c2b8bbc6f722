/**
 * What ends an ownership, or takes away what somebody remembers of it, behind FencedJob's back: each as data, as in
 * `scenarios.ts`. The aim is not a time: no number is accepted twice, work goes on by itself, or a condition says with which command.
 */
import { execFileSync } from "node:child_process";
import { dirname } from "node:path";
import { expect } from "vitest";
import { GENERATION_MAX } from "../../controller/api/status.ts";
import { RESOURCES } from "../../controller/kube/api.ts";
import { raise } from "../../fence/client.ts";
import { addressFromUrl } from "../../fence/url.ts";
import { GENERATION_ANNOTATION } from "../../lease/record.ts";
import { systemClock as clock } from "../../platform/clock.ts";
import { until } from "../../testing/until.ts";
import { backUpEtcd, restoreEtcd } from "../cluster/faults.ts";
import { DATABASES } from "./restores.ts";
import { deletePod, exitWith } from "./scenarios.ts";
import { type Cause, type Job, LEASE_SECONDS, LONG_LEASE_SECONDS, STEP_MS_MAX, type Stage } from "./stage.ts";
import {
  duration,
  editDuration,
  fenceRow,
  generationIs,
  heartbeats,
  isTrue,
  keyOf,
  nextOwner,
  type PermanenceScenario,
  patchJob,
  patchLease,
  patchStatus,
} from "./steps.ts";

const HOUR_SECONDS = 3600;
const TOO_SHORT_SECONDS = 1;
const ABSURD = GENERATION_MAX - 1000;
const AUDIT = "audit";
const FOREIGN_GENERATION = 100;

/** As a person's shell would. */
function type(stage: Stage, command: string): void {
  const { kubeconfigPath, tools } = stage.scene.cluster;
  const env = { ...process.env, KUBECONFIG: kubeconfigPath, PATH: `${dirname(tools.kubectl)}:${process.env.PATH}` };
  execFileSync("sh", ["-c", command], { env });
}

/** A job with a second database, in which it only has a fence. */
async function withAudit(stage: Stage): Promise<Omit<Job, "name">> {
  await stage.ledger.addDatabase(AUDIT);
  await letConnect(stage, true);
  await stage.putSecret(AUDIT, stage.ledger.uriOf(AUDIT));
  const audit = { name: AUDIT, secretName: AUDIT, port: 5433 };
  // Of several databases none is the one that is found by default.
  const env = { PGHOST: "127.0.0.1", PGPORT: "5432" };
  return { env, spec: { databases: [{ name: "ledger", secretName: stage.secret }, audit] } };
}

async function letConnect({ ledger }: Stage, allowed: boolean): Promise<void> {
  await ledger.query(`ALTER DATABASE ${AUDIT} ALLOW_CONNECTIONS ${allowed}`);
}

/** As a cluster does to which the work was moved for good: it has seen our issuer and number, and is told to go over them. */
const takenByAnotherCluster =
  (stage: Stage, name: string): Cause =>
  async (_, begins) => {
    const { scene, ledger } = stage;
    const { issuer, generation } = await fenceRow(stage, name);
    await raise(
      addressFromUrl(ledger.uri),
      {
        fenceName: `${scene.namespace}/${name}`,
        generation: FOREIGN_GENERATION,
        holder: "elsewhere",
        holderName: "pod",
      },
      { issuer: "another cluster", takeOver: { issuer, generation }, nonce: "elsewhere", drainMs: 1_000, clock },
    );
    const { message: told } = await isTrue(stage, name, "ForeignIssuer");
    const [command] = /kubectl patch .* -p '[^']*'/.exec(told) ?? expect.fail(told);
    expect((await fenceRow(stage, name)).issuer).toBe("another cluster");
    await begins();
    type(stage, command);
  };

const suspendAndResume =
  (stage: Stage, name: string): Cause =>
  async ({ uid, generation }, begins) => {
    await patchJob(stage, name, { spec: { suspend: true } });
    await isTrue(stage, name, "Suspended");
    // INV-3: a close is a raise to nobody.
    const [closed] = await stage.ledger.query(
      `SELECT c.closed_at IS NOT NULL AS closed, count(w)::int AS "rowsAfter"
       FROM fence.claim c JOIN fence.job j ON j.id = c.job_id AND j.generation = c.generation
         LEFT JOIN written w ON w.job = $1 AND w.uid = $2
           AND pg_xact_commit_timestamp(w.xmin) > pg_xact_commit_timestamp(c.xmin)
       WHERE j.name = $3 AND c.generation = $4 GROUP BY c.closed_at`,
      [name, uid, `${stage.scene.namespace}/${name}`, generation],
    );
    expect(closed).toEqual({ closed: true, rowsAfter: 0 });
    await begins();
    await patchJob(stage, name, { spec: { suspend: false } });
  };

/** What happens to the cluster's objects. */
export const OBJECTS: readonly PermanenceScenario[] = [
  {
    id: "lease-deleted",
    cause: "the Lease is deleted under a running owner",
    effect: "loss for its owner, who creates no other; the next one has a new Lease and the next generation",
    reason: "LeaseDeleted",
    act: (stage, name) => () => stage.scene.api.delete(RESOURCES.leases, keyOf(stage, name)),
    verify: (stage, name) => generationIs(stage, name, (generation) => generation === 2),
  },
  {
    id: "lease-huge",
    cause: "the Lease is edited to the highest generation that there is",
    effect:
      "loss for its owner, who renews no more; when the Lease has run out the next generation is the next one: nobody believes that number",
    reason: "LeaseTaken",
    waitsForLease: true,
    act: (stage, name) => async () => {
      await patchLease(stage, name, { metadata: { annotations: { [GENERATION_ANNOTATION]: `${GENERATION_MAX}` } } });
    },
    verify: (stage, name) => generationIs(stage, name, (generation) => generation === 2),
  },
  {
    id: "lease-longer",
    cause: "the Lease is edited to an hour; its owner goes on, and later its application exits with an error",
    effect: "who gives the Lease back is succeeded at once, and the next grant has the spec's duration again",
    reason: "PodFailed",
    sinceLastRow: true,
    prepare: async (stage, name) => {
      await editDuration(stage, name, HOUR_SECONDS);
      await heartbeats(stage, name, 3);
      await generationIs(stage, name, (generation) => generation === 1);
      expect(await duration(stage, name)).toBe(HOUR_SECONDS);
    },
    act: exitWith(1),
    verify: async (stage, name) => expect(await duration(stage, name)).toBe(LONG_LEASE_SECONDS),
  },
  {
    id: "lease-shorter",
    cause: `the Lease is edited to ${TOO_SHORT_SECONDS} s, in which nobody can renew it`,
    effect:
      "loss for its owner, whose permit that would end before each renewal; the Lease runs out after the spec's duration",
    reason: "LeaseExpired",
    waitsForLease: true,
    act: (stage, name) => async () => void (await editDuration(stage, name, TOO_SHORT_SECONDS)),
    verify: async (stage, name) => expect(await duration(stage, name)).toBe(LEASE_SECONDS),
  },
  {
    id: "status-lost",
    // D16
    cause: "the FencedJob's status is lost under a running owner (restored without it)",
    effect:
      "a pod that the status does not know is stopped; the first number is refused, the database's next one is not",
    reason: "RaiseRefused",
    act: (stage, name) => async () => {
      const status = Object.keys(await stage.scene.status(name)).map((field) => [field, null]);
      await patchStatus(stage, name, Object.fromEntries(status));
    },
    verify: (stage, name) => generationIs(stage, name, (generation) => generation > 1),
  },
  {
    id: "status-absurd",
    cause: "the status is edited to a generation near the end of all numbers, and the owner's pod is deleted",
    effect: "the database refuses the jump, and the count goes back to what the database knows",
    reason: "PodDeleted",
    prepare: async (stage, name) => void (await patchStatus(stage, name, { generation: ABSURD })),
    act: deletePod(),
    verify: async (stage, name) => {
      const { history } = await stage.scene.status(name);
      const refused = history.filter(({ reason }) => reason === "RaiseRefused");
      expect(refused.map(({ generation }) => generation)).toEqual([ABSURD + 1]);
      await generationIs(stage, name, (generation) => generation === 2);
    },
  },
  {
    id: "namespace-anew",
    cause: "the namespace is deleted, and the same manifests are applied in a new one (measured from there)",
    effect: "the fence outlives it: the first number is refused, the next one is above the fence",
    reason: "RaiseRefused",
    ownNamespace: true,
    act: (stage, name) => (_, begins) => stage.makeNamespaceAnew(name, begins),
    verify: (stage, name) => generationIs(stage, name, (generation) => generation > 1),
  },
  {
    id: "foreign-issuer",
    cause:
      "another cluster has taken the fence over, and the command of the condition ForeignIssuer is run (measured from there)",
    effect: "until then nothing is raised over it; then the next generation is above the other cluster's",
    reason: "RaiseRefused",
    act: takenByAnotherCluster,
    verify: async (stage, name) => {
      await generationIs(stage, name, (generation) => generation > FOREIGN_GENERATION);
      expect(await stage.scene.condition(name, "ForeignIssuer")).toMatchObject({
        status: "False",
        reason: "OneIssuer",
      });
    },
  },
  {
    id: "suspended",
    cause: "suspended while its owner writes, and resumed (measured from there)",
    effect: "`Suspended` is True once the fence is closed, behind which nothing is committed; then the next pod starts",
    reason: "Suspended",
    act: suspendAndResume,
  },
  {
    id: "database-refuses",
    cause:
      "the owner's pod is deleted while one of two databases refuses, and that one is mended (measured from there)",
    effect: "nobody works without all fences, and `FenceRaised` names the one that fails; it is tried again by itself",
    reason: "PodDeleted",
    job: withAudit,
    act: (stage, name) => async (owner, begins) => {
      await letConnect(stage, false);
      await deletePod()(stage)(owner, begins);
      await until(async () => {
        const { status, message } = (await stage.scene.condition(name, "FenceRaised")) ?? {};
        return status === "False" && message?.includes("not currently accepting connections");
      }, STEP_MS_MAX);
      // INV-4: the other database was raised, and nobody is let in all the same.
      expect((await stage.ledger.writers(name)).map(({ uid }) => uid)).toEqual([owner.uid]);
      await begins();
      await letConnect(stage, true);
    },
    verify: (stage, name) => generationIs(stage, name, (generation) => generation === 2),
  },
  {
    id: "database-removed",
    cause: "a database has left spec.databases, and the owner's pod is deleted",
    effect: "the owner goes on with those that it has; the next one closes the fence of the other",
    reason: "PodDeleted",
    job: withAudit,
    prepare: async (stage, name) => {
      // One that is not known to be at work yet would be replaced by a pod of the new spec.
      await stage.applicationRuns((await stage.owner(name)).pod);
      await patchJob(stage, name, { spec: { databases: [{ name: "ledger", secretName: stage.secret }] } });
      const told = "until the next owner closes it";
      await until(async () => (await stage.scene.condition(name, "FenceRaised"))?.message.includes(told), STEP_MS_MAX);
      expect((await fenceRow(stage, name, AUDIT)).closedAt).toBe("");
    },
    act: deletePod(),
    verify: async (stage, name) => {
      await until(async () => (await stage.scene.status(name)).fences.length === 1, STEP_MS_MAX);
      expect((await fenceRow(stage, name, AUDIT)).closedAt).not.toBe("");
    },
  },
];

/** What happens to the whole cluster. */
export const CLUSTER: readonly PermanenceScenario[] = [
  {
    id: "etcd-restored",
    // A15
    cause: "etcd comes back as it was before the owner's generation was issued (measured from the API server's return)",
    effect:
      "the pod of then has no containers any more and counts as failed; the number that comes back is refused, the next one is above it",
    reason: "PodFailed",
    prepare: async (stage, name) => {
      await backUpEtcd();
      await nextOwner(stage, name);
      await generationIs(stage, name, (generation) => generation === 2);
    },
    act: () => async (_, begins) => {
      await restoreEtcd();
      await begins();
    },
    verify: (stage, name) => generationIs(stage, name, (generation) => generation > 2),
  },
];

export const PERMANENCE = [...OBJECTS, ...DATABASES, ...CLUSTER];
