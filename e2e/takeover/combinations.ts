/** Two things at once, each of which a scenario of its own plays alone: data as in `scenarios.ts`, the cluster's objects and nodes as prey. */
import { expect } from "vitest";
import { RESOURCES } from "../../controller/kube/api.ts";
import { ifThere } from "../../controller/kube/errors.ts";
import type { RawObject } from "../../controller/kube/objects.ts";
import { GENERATION_ANNOTATION, type RawLease, readLease } from "../../lease/record.ts";
import { ELECTION_LEASE } from "../../testing/controllerprocess.ts";
import { until } from "../../testing/until.ts";
import { cutNode, cutNodeFromApi, restartControlPlane } from "../cluster/faults.ts";
import { SYSTEM_NAMESPACE } from "../controller.ts";
import { deletePod } from "./scenarios.ts";
import { mendedAfter, STEP_MS_MAX, type Stage } from "./stage.ts";
import { fenceRow, isTrue, keyOf, type PermanenceScenario, patchJob, patchLease, patchStatus } from "./steps.ts";

const STUCK = "example.com/stuck";
const FLIPS = 5;
const LEASES_DELETED = 8;
/** After SIGTERM, where something is to happen before the owner has ended. */
const WRITES_ON_MS = 10_000;

/** The pod of the controller that leads; the Lease names one that was killed until another is elected, which acts for it already. */
function leader({ scene: { api } }: Stage): Promise<string> {
  const namespace = SYSTEM_NAMESPACE;
  return until(
    async () => {
      const lease = await api.get<RawLease & RawObject>(RESOURCES.leases, { namespace, name: ELECTION_LEASE });
      const { holderPod } = readLease(lease);
      return holderPod && (await api.get<RawObject>(RESOURCES.pods, { namespace, name: holderPod })).metadata.name;
    },
    STEP_MS_MAX,
    { what: "a controller leads" },
  );
}

async function killControllers({ scene }: Stage): Promise<void> {
  const { items } = await scene.api.list<RawObject>(RESOURCES.pods, { namespace: SYSTEM_NAMESPACE });
  await Promise.all(items.map(({ metadata }) => kill(scene, metadata.name)));
}

/**
 * A controller with its pod, and another pod takes its place: one that is started again in place waits, the longer the more often, and
 * the next scenario with it.
 */
async function kill({ api }: Stage["scene"], name: string): Promise<void> {
  await ifThere(api.delete(RESOURCES.pods, { namespace: SYSTEM_NAMESPACE, name }, { gracePeriodSeconds: 0 }));
}

/** As whoever deletes by force has seen to it that nothing new starts there: the scheduler does not know it for 40 s. */
async function cutAndCordoned({ scene }: Stage, node: string): Promise<() => Promise<void>> {
  const mend = await cutNodeFromApi(node);
  return mendedAfter(
    async () => {
      await mend();
      await scene.cluster.kubectl(["uncordon", node]);
    },
    () => scene.cluster.kubectl(["cordon", node]),
  );
}

/** INV-3: nothing of an older generation behind one of a newer, in the order of commits. */
export async function expectOneAfterTheOther({ scene, ledger }: Stage, name: string): Promise<void> {
  const wrong = await ledger.query(
    `SELECT * FROM (
       SELECT uid, c.generation, at, max(c.generation) OVER (ORDER BY at, c.generation) AS highest
       FROM (SELECT uid, pg_xact_commit_timestamp(xmin) AS at FROM written WHERE job = $1) AS w
       LEFT JOIN (SELECT c.* FROM fence.claim c JOIN fence.job j ON j.id = c.job_id AND j.name = $2) AS c ON c.holder = w.uid
     ) AS ordered WHERE generation IS NULL OR generation < highest LIMIT 5`,
    [name, `${scene.namespace}/${name}`],
  );
  expect(wrong).toEqual([]);
}

export const COMBINATIONS: readonly PermanenceScenario[] = [
  {
    id: "suspended-leaderless",
    cause:
      "suspended while somebody's lock holds up the close, and the leading controller is killed in the middle of it, and again at the resumption (measured from there)",
    effect: "another controller has the fence closed by a pod of its own; then the next pod starts",
    reason: "Suspended",
    act: (stage, name) => async (owner, begins) => {
      const { ledger, scene } = stage;
      const release = await ledger.lockFence(`${scene.namespace}/${name}`);
      try {
        await patchJob(stage, name, { spec: { suspend: true } });
        await until(() => scene.podIsGone(owner.pod), STEP_MS_MAX);
        await kill(scene, await leader(stage));
      } finally {
        await release();
      }
      await isTrue(stage, name, "Suspended");
      expect((await fenceRow(stage, name)).closedAt).not.toBe("");
      const next = await leader(stage);
      await begins();
      await patchJob(stage, name, { spec: { suspend: false } });
      await kill(scene, next);
    },
  },
  {
    id: "suspended-and-not",
    cause: `suspended and resumed ${FLIPS} times in a row without waiting`,
    effect: "the owner is replaced once or more; one after the other",
    reason: "Suspended",
    // Longer than all of it takes: the owner has its end when the job is suspended.
    job: () => ({ onSigterm: WRITES_ON_MS, podSpec: { terminationGracePeriodSeconds: 60 } }),
    act: (stage, name) => async () => {
      for (let flip = 0; flip < FLIPS; flip++) {
        await patchJob(stage, name, { spec: { suspend: true } });
        await patchJob(stage, name, { spec: { suspend: false } });
      }
      await patchJob(stage, name, { spec: { suspend: true } });
      await isTrue(stage, name, "Suspended");
      await patchJob(stage, name, { spec: { suspend: false } });
    },
  },
  {
    id: "leaderless",
    cause:
      "the owner's pod is deleted while both controllers are killed; its application ignores SIGTERM for as long as others start",
    effect: "the controllers that come after them go on with what they find",
    reason: "PodDeleted",
    job: () => ({ onSigterm: "ignore", podSpec: { terminationGracePeriodSeconds: 30 } }),
    act: (stage) => async (owner, begins) => {
      await deletePod()(stage)(owner, begins);
      await killControllers(stage);
    },
  },
  {
    id: "lease-deleted-api-away",
    cause: "the Lease is deleted, and the API server is started anew at once, whatever was done about it by then",
    effect: "as if only the Lease had been deleted, a restart later",
    reason: "LeaseDeleted",
    act: (stage, name) => async () => {
      await stage.scene.api.delete(RESOURCES.leases, keyOf(stage, name));
      await restartControlPlane();
    },
  },
  {
    id: "lease-deleted-again",
    cause: `the Lease is deleted ${LEASES_DELETED} times, as soon as there is one again`,
    effect: "each time the next generation; none twice",
    reason: "LeaseDeleted",
    act: (stage, name) => async () => {
      for (let deleted = 0; deleted < LEASES_DELETED; deleted++) {
        await until(() => stage.scene.api.delete(RESOURCES.leases, keyOf(stage, name)).then(() => true), STEP_MS_MAX);
      }
    },
  },
  {
    id: "lease-given-away",
    cause: "the Lease is edited to name a standby, with the next generation",
    effect:
      "the standby takes it for its grant, and is replaced all the same: what nobody has issued counts for nobody (INV-7, INV-8)",
    reason: "LeaseTaken",
    job: () => ({ spec: { standbys: { count: 1 } } }),
    prepare: (stage, name) => stage.standbyRuns(name, "sidecar"),
    act:
      (stage, name) =>
      async ({ generation }) => {
        const [candidate] = (await stage.scene.status(name)).candidates;
        const key = keyOf(stage, candidate?.pod ?? "");
        const { metadata } = await stage.scene.api.get<RawObject>(RESOURCES.pods, key);
        await patchLease(stage, name, {
          metadata: { annotations: { [GENERATION_ANNOTATION]: `${generation + 1}` } },
          spec: { holderIdentity: metadata.uid },
        });
      },
  },
  {
    id: "status-and-lease-lost",
    cause:
      "the status forgets all (attempt, generation, owner, history), and the Lease is deleted, under a running owner",
    effect: "its pod is nobody's and goes; the next generation is above what the database knows (INV-7)",
    reason: "RaiseRefused",
    act: (stage, name) => async () => {
      const status = Object.keys(await stage.scene.status(name)).map((field) => [field, null]);
      await patchStatus(stage, name, Object.fromEntries(status));
      await stage.scene.api.delete(RESOURCES.leases, keyOf(stage, name));
    },
  },
  {
    id: "status-lowered",
    cause:
      "the status is edited to attempt 0 and generation 0 with no owner, while its pod owns; then its pod is deleted",
    effect: "no pod is granted a second time, and no number is accepted twice (INV-7, INV-8)",
    reason: "RaiseRefused",
    act: (stage, name) => async (owner) => {
      await patchStatus(stage, name, { attempt: 0, generation: 0, owner: null, history: null, candidates: null });
      // It is nobody's by now, and perhaps gone.
      await ifThere(stage.scene.api.delete(RESOURCES.pods, keyOf(stage, owner.pod)));
    },
  },
  {
    id: "changed-twice",
    cause: "the owner's pod is deleted, and the template is changed twice while its successor waits for its end",
    effect: "the next owner is of the last template",
    reason: "PodDeleted",
    // Both changes come before anybody can be granted anything.
    job: () => ({ onSigterm: WRITES_ON_MS, podSpec: { terminationGracePeriodSeconds: 60 } }),
    // One that is not known to be at work yet would have its end by the first change.
    prepare: async (stage, name) => stage.applicationRuns((await stage.owner(name)).pod),
    act: (stage, name) => async (owner, begins) => {
      const { template } = (await stage.scene.api.get<RawObject>(RESOURCES.fencedJobs, keyOf(stage, name))).spec as {
        template: { spec: { containers: { env: object[] }[] } };
      };
      const changed = (value: string): object => ({
        spec: {
          template: {
            spec: {
              containers: template.spec.containers.map((one) => ({
                ...one,
                env: [...one.env, { name: "CHANGED", value }],
              })),
            },
          },
        },
      });
      await deletePod()(stage)(owner, begins);
      await patchJob(stage, name, changed("once"));
      await until(async () => (await stage.scene.status(name)).candidates.length > 0, STEP_MS_MAX);
      await patchJob(stage, name, changed("twice"));
    },
    verify: async (stage, name) => {
      const { pod } = await stage.owner(name);
      const { spec } = await stage.scene.api.get<RawObject>(RESOURCES.pods, keyOf(stage, pod));
      expect(JSON.stringify(spec)).toContain('"twice"');
    },
  },
  {
    id: "orphaned",
    cause: "the FencedJob is deleted with `--cascade=orphan` and made anew at once",
    effect: "what it leaves behind owns nothing; the next generation is above its fence",
    reason: "RaiseRefused",
    act: (stage, name) => async () => {
      const { scene } = stage;
      const { spec } = await scene.api.get<RawObject>(RESOURCES.fencedJobs, keyOf(stage, name));
      await scene.cluster.kubectl(["delete", "fj", "-n", scene.namespace, name, "--cascade=orphan", "--timeout=240s"]);
      await scene.create(name, spec as object);
    },
  },
  {
    id: "forced-while-cut",
    cause:
      "its node is cut off from the API server, not from the database, and its pod is deleted with `--force`: it writes on, and may, as its lease has minutes left",
    effect: "the pod is gone, so nobody is waited for; the fence alone stops what still writes (INV-3)",
    reason: "PodDeleted",
    startsWhereItMayBeLost: true,
    act: (stage) => async (owner, begins) => {
      const mend = await cutAndCordoned(stage, owner.node ?? "");
      return mendedAfter(mend, async () => {
        await begins();
        await deletePod(0)(stage)(owner, begins);
      });
    },
  },
  {
    id: "forced-and-forgotten",
    cause: "the same, and the Lease is deleted and the status loses its generation at the same time",
    effect: "the database refuses the number that was used, the next one is above it",
    reason: "RaiseRefused",
    startsWhereItMayBeLost: true,
    act: (stage, name) => async (owner, begins) => {
      const mend = await cutAndCordoned(stage, owner.node ?? "");
      return mendedAfter(mend, async () => {
        await patchStatus(stage, name, { attempt: 0, generation: 0, owner: null, history: null });
        await deletePod(0)(stage)(owner, begins);
        await stage.scene.api.delete(RESOURCES.leases, keyOf(stage, name));
      });
    },
  },
  {
    id: "promoted-and-cut",
    cause: "the owner's pod is deleted, and the node of the standby that takes over is cut off",
    effect: "two takeovers, the second when the Lease has run out",
    reason: "LeaseExpired",
    waitsForLease: true,
    job: () => ({ spec: { standbys: { count: 1 } } }),
    prepare: async (stage, name) => {
      await stage.standbyRuns(name, "sidecar");
      const [standby] = (await stage.scene.status(name)).candidates;
      await stage.takeover(name, deletePod()(stage));
      expect((await stage.scene.status(name)).owner?.pod).toBe(standby?.pod);
    },
    act:
      () =>
      ({ node = "" }) =>
        cutNode(node),
  },
  {
    id: "namespace-stuck",
    cause:
      "the namespace is deleted while a foreign finalizer holds the owner's pod; when it is gone, the same manifests are applied in a new one (measured from there)",
    effect: "the pod that does not go owns nothing; the next generation is above its fence",
    reason: "RaiseRefused",
    ownNamespace: true,
    act:
      (stage, name) =>
      async ({ pod, uid }, begins) => {
        const { scene } = stage;
        const metadata = { finalizers: [STUCK] };
        await scene.api.patch(RESOURCES.pods, keyOf(stage, pod), { metadata });
        const anew = stage.makeNamespaceAnew(name, begins);
        const held = await until(
          async () => {
            const found = await scene.api.get<RawObject>(RESOURCES.pods, keyOf(stage, pod));
            return /Failed|Succeeded/.test(String((found.status as { phase?: string }).phase)) && found;
          },
          STEP_MS_MAX,
          { what: `${pod} has ended and is held` },
        );
        expect(held.metadata.uid).toBe(uid);
        await scene.api.patch(RESOURCES.pods, keyOf(stage, pod), { metadata: { finalizers: null } });
        await anew;
      },
  },
];
