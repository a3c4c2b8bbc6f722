/** What administrators do to a database, each as data, as in `permanence.ts`. */
import { until } from "../../testing/until.ts";
import { ROLE } from "./ledger.ts";
import { deletePod } from "./scenarios.ts";
import { type Cause, STEP_MS_MAX, type Stage } from "./stage.ts";
import { generationIs, heartbeats, nextOwner, type PermanenceScenario } from "./steps.ts";

const restored =
  ({ ledger }: Stage): Cause =>
  async (_, begins) => {
    await ledger.server.restore();
    await begins();
  };

/** Seen are the next owner's rows when the standby is given up; committed, by their time, they were before. */
const withoutStandby =
  (stage: Stage, name: string): Cause =>
  async (owner, begins) => {
    const { scene, ledger } = stage;
    await ledger.query("ALTER SYSTEM SET synchronous_standby_names = 'gone'");
    await ledger.query("SELECT pg_reload_conf()");
    const waits = "SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    await until(async () => (await ledger.query(waits)).length, STEP_MS_MAX, { what: "the owner's commit waits" });
    await begins();
    await deletePod()(stage)(owner, begins);
    await until(async () => (await scene.status(name)).fence === owner.generation + 1, STEP_MS_MAX);
    await until(async () => (await ledger.query(waits)).length, STEP_MS_MAX, { what: "the next one's commit waits" });
    await ledger.query("ALTER SYSTEM RESET synchronous_standby_names");
    await ledger.query("SELECT pg_reload_conf()");
  };

const RESTORE_POINT = "before the last raise";

/** What happens to a database; each has one of its own. */
export const DATABASES: readonly PermanenceScenario[] = [
  {
    id: "failover-lost-raise",
    cause:
      "fail-over to an asynchronous replica that lacks the last raise, the old primary is left running (measured from the promotion)",
    effect: "the heartbeat meets another timeline (LF003); the next generation is raised on the new primary",
    reason: "RaiseRefused",
    database: { replicated: true },
    prepare: async (stage, name) => {
      await stage.ledger.server.cutReplica();
      await nextOwner(stage, name);
    },
    act:
      ({ ledger }) =>
      async (_, begins) => {
        await ledger.server.promoteReplica();
        await begins();
      },
    verify: (stage, name) => generationIs(stage, name, (generation) => generation === 3),
  },
  {
    id: "volume-put-back",
    cause:
      "its data directory is put back as it was a few heartbeats ago, under the same owner (measured from its start)",
    effect: "row and history are right, the witness is not (LF003); the next generation is raised",
    reason: "RaiseRefused",
    database: {},
    prepare: async (stage, name) => {
      await stage.ledger.server.backUp();
      await heartbeats(stage, name, 2);
      await generationIs(stage, name, (generation) => generation === 1);
    },
    act: restored,
    verify: (stage, name) => generationIs(stage, name, (generation) => generation === 2),
  },
  {
    id: "volume-before-raise",
    cause: "its data directory is put back as it was before the owner's raise (measured from its start)",
    effect: "the row is another's (LF003); the generation after the lost one is raised",
    reason: "RaiseRefused",
    database: {},
    prepare: async (stage, name) => {
      await stage.ledger.server.backUp();
      await nextOwner(stage, name);
    },
    act: restored,
    verify: (stage, name) => generationIs(stage, name, (generation) => generation === 3),
  },
  {
    id: "point-in-time",
    cause: "restored to a point in time before the owner's raise (measured from the end of the recovery)",
    effect: "another timeline and a lower fence (LF003); the generation after the lost one is raised",
    reason: "RaiseRefused",
    database: { archived: true },
    prepare: async (stage, name) => {
      await stage.ledger.server.backUp();
      await stage.ledger.server.restorePoint(RESTORE_POINT);
      await nextOwner(stage, name);
    },
    act:
      ({ ledger }) =>
      async (_, begins) => {
        await ledger.server.restore(RESTORE_POINT);
        await begins();
      },
    verify: (stage, name) => generationIs(stage, name, (generation) => generation === 3),
  },
  {
    id: "dump-loaded",
    cause: "a dump is loaded beside it and takes its name (measured from there)",
    effect: "the oids differ (LF003); the next generation is raised in the copy",
    reason: "RaiseRefused",
    database: { version: 15 },
    act:
      ({ ledger }) =>
      async (_, begins) => {
        await ledger.server.loadDump(ROLE);
        await begins();
      },
    verify: (stage, name) => generationIs(stage, name, (generation) => generation === 2),
  },
  {
    id: "standby-gone",
    cause: "the owner's pod is deleted while the synchronous standby is gone, for which its commits wait",
    effect:
      "neither close nor raise waits for it, and the old session's wait is ended; the next owner's commits wait again",
    reason: "PodDeleted",
    database: {},
    act: withoutStandby,
    verify: (stage, name) => generationIs(stage, name, (generation) => generation === 2),
  },
];
