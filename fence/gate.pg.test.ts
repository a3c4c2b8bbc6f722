import type { Client } from "pg";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { type Fenced, failure, type JobOfTest, startFenced, until } from "../testing/fenced.ts";
import { postgresVersions } from "../testing/postgres.ts";
import { enterLockSql, enterSelectSql } from "./enter.ts";

const ISOLATION = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] as const;

describe.each(postgresVersions().found)("the gate on PostgreSQL %i", (version) => {
  let fenced: Fenced;
  let admin: Client;
  let job: JobOfTest;
  let jobId: number;
  let count = 0;

  const newJob = async (): Promise<void> => {
    job = fenced.job(`test/gate-${++count}`);
    ({ jobId } = await job.raise(1));
  };
  const openGates = async (): Promise<number[]> =>
    (await admin.query("SELECT generation::int AS g FROM fence.gates($1) WHERE open", [jobId])).rows.map(({ g }) => g);
  /** Enters in a block at each level; the SQLSTATEs. */
  const tryEnter = async (client: Client, generation: number): Promise<(string | undefined)[]> => {
    const outcomes: (string | undefined)[] = [];
    for (const level of ISOLATION) {
      for (const sql of [enterLockSql(jobId, generation), enterSelectSql(jobId, generation)]) {
        await client.query(`BEGIN ISOLATION LEVEL ${level} READ WRITE`);
        outcomes.push(
          await client.query(sql).then(
            () => undefined,
            (error) => error.code,
          ),
        );
        await client.query("ROLLBACK");
      }
    }
    return outcomes;
  };
  const all = (outcome: string | undefined): (string | undefined)[] => Array(6).fill(outcome);

  beforeAll(async () => {
    fenced = await startFenced({ version });
    admin = await fenced.connectAdmin();
    await admin.query("CREATE ROLE low LOGIN; CREATE ROLE outsider LOGIN; CREATE ROLE team");
  });
  afterAll(() => fenced?.stop());

  test("INV-3: the current gate lets every role in, the closed one nobody, at each isolation level and both ways to enter", async () => {
    await newJob();
    const app = await fenced.connect();
    const low = await fenced.connect("low");
    expect(await tryEnter(app, 1)).toEqual(all(undefined));
    expect(await tryEnter(low, 1)).toEqual(all(undefined));
    await job.raise(2);
    expect(await tryEnter(app, 1)).toEqual(all("42501"));
    expect(await tryEnter(low, 1)).toEqual(all("42501"));
    expect(await tryEnter(app, 2)).toEqual(all(undefined));
    expect(await openGates()).toEqual([2]);
  });

  test("INV-3: a prepared enter is refused after the raise, with a generic, a custom and an automatic plan", async () => {
    for (const mode of ["force_generic_plan", "force_custom_plan", "auto"]) {
      await newJob();
      const app = await fenced.connect();
      await app.query(`SET plan_cache_mode = ${mode}`);
      const enter = { name: "enter", text: enterSelectSql(jobId, 1) };
      // Autocommit, more often than the five runs after which an automatic plan may become generic.
      for (let run = 0; run < 7; run++) {
        await app.query("BEGIN READ WRITE");
        await app.query(enter);
        await app.query("COMMIT");
      }
      await job.raise(2);
      await app.query("BEGIN READ WRITE");
      expect(await failure(app.query(enter))).toMatchObject({ code: "42501" });
      await app.query("ROLLBACK");
    }
  });

  test.each(ISOLATION)(
    "INV-3: an entry that queues behind the raise is refused when it wakes up, at %s",
    async (level) => {
      await newJob();
      const raiser = await fenced.connectAdmin();
      await raiser.query("BEGIN; SET LOCAL ROLE fence_sidecar");
      await raiser.query("SELECT fence.raise($1, 2, 'uid-2', 'invoice-run-2', 'n', 'test')", [`test/gate-${count}`]);
      const late = [];
      for (const sql of [enterLockSql(jobId, 1), enterSelectSql(jobId, 1)]) {
        const app = await fenced.connect();
        // The snapshot is older than the raise's commit wherever the level keeps one.
        await app.query(`BEGIN ISOLATION LEVEL ${level} READ WRITE`);
        late.push(failure(app.query(sql)));
      }
      const waiting =
        "SELECT count(*) = 2 FROM pg_locks WHERE relation = $1::regclass AND mode = 'RowShareLock' AND NOT granted";
      await until(admin, waiting, [`fence.gate_${jobId}_1`]);
      await raiser.query("COMMIT");
      for (const error of await Promise.all(late)) expect(error).toMatchObject({ code: "42501" });
    },
  );

  test.each(ISOLATION)(
    "INV-3: takeover before, between and during the old transaction's statements, at %s",
    async (level) => {
      await newJob();
      await admin.query(`CREATE TABLE kept_${count} (step text); GRANT ALL ON kept_${count} TO invoice_app`);
      const insert = (step: string): string => `INSERT INTO kept_${count} VALUES ('${step}')`;
      const begin = `BEGIN ISOLATION LEVEL ${level} READ WRITE`;
      const [before, between, during, done] = await Promise.all([1, 2, 3, 4].map(() => job.admit(jobId, 1)));
      const outside = await fenced.connect(); // no session that a raise could end: only the gate stands against it
      await done!.query(`${begin}; ${enterLockSql(jobId, 1)}; ${insert("in time")}; COMMIT`);
      await before!.query(begin);
      await outside.query(begin);
      await between!.query(`${begin}; ${enterLockSql(jobId, 1)}; ${insert("between")}`);
      await during!.query(begin);
      await during!.query(enterSelectSql(jobId, 1));
      const running = failure(during!.query(`${insert("during")}; SELECT pg_sleep(20)`));
      await until(admin, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep')");
      expect(await job.raise(2, { drainMs: 50 })).toMatchObject({ sessionsEnded: 4 });
      expect(await failure(outside.query(enterSelectSql(jobId, 1)))).toMatchObject({ code: "42501" });
      expect(await running).toMatchObject({ code: "57P01" });
      for (const client of [before!, between!, done!]) await expect(client.query("COMMIT")).rejects.toThrow();
      const { rows } = await admin.query(`SELECT step FROM kept_${count}`);
      expect(rows).toEqual([{ step: "in time" }]);
    },
  );

  test("INV-3: a raise that is rolled back leaves the old gate open and no other", async () => {
    await newJob();
    const raiser = await fenced.connectAdmin();
    await raiser.query("BEGIN");
    await raiser.query("SELECT fence.raise($1, 2, 'uid-2', 'invoice-run-2', 'n', 'test')", [`test/gate-${count}`]);
    await raiser.query("ROLLBACK");
    expect(await openGates()).toEqual([1]);
    expect(await tryEnter(await fenced.connect(), 1)).toEqual(all(undefined));
    expect(await job.row()).toMatchObject({ generation: 1 });
  });

  test("a gate that somebody else owns cannot be closed: the raise aborts and names it, and nothing opens", async () => {
    await newJob();
    await admin.query(`ALTER TABLE fence.gate_${jobId}_1 OWNER TO outsider`);
    await admin.query(`SET ROLE outsider; GRANT SELECT, UPDATE ON fence.gate_${jobId}_1 TO PUBLIC; RESET ROLE`);
    const error = await failure(job.raise(2));
    expect(error).toMatchObject({ code: "LF012", final: false });
    expect(error.detail).toContain('owner "outsider"');
    expect(await job.row()).toMatchObject({ generation: 1 });
    await admin.query(`ALTER TABLE fence.gate_${jobId}_1 OWNER TO fence_owner`);
    await job.raise(2);
    expect(await openGates()).toEqual([2]);
    // Closed, but not ours: its owner could open it at any time.
    await admin.query(
      `ALTER TABLE fence.gate_${jobId}_1 OWNER TO outsider; REVOKE ALL ON fence.gate_${jobId}_1 FROM PUBLIC, outsider`,
    );
    expect(await failure(job.raise(3))).toMatchObject({ code: "LF012" });
    await admin.query(`ALTER TABLE fence.gate_${jobId}_1 OWNER TO fence_owner`);
    await job.raise(3);
  });

  test("a leftover gate of the next generation, from a dump or another history, is replaced", async () => {
    await newJob();
    await admin.query(`SET ROLE fence_owner; CREATE TABLE fence.gate_${jobId}_2 (left_over int); RESET ROLE`);
    await job.raise(2);
    expect(await openGates()).toEqual([2]);
    expect(await tryEnter(await fenced.connect("low"), 2)).toEqual(all(undefined));
  });

  test("grants of other grantors, to roles and to groups, all end with the raise", async () => {
    await newJob();
    const gate = `fence.gate_${jobId}_1`;
    await admin.query(
      `GRANT ALL ON ${gate} TO outsider WITH GRANT OPTION; GRANT UPDATE ON ${gate} TO team; GRANT team TO low`,
    );
    await admin.query(`SET ROLE outsider; GRANT UPDATE, DELETE ON ${gate} TO low WITH GRANT OPTION; RESET ROLE`);
    await admin.query(`SET ROLE low; GRANT DELETE ON ${gate} TO invoice_app; RESET ROLE`);
    await job.raise(2);
    expect(await openGates()).toEqual([2]);
    for (const role of ["low", "outsider", "invoice_app"]) {
      expect(await tryEnter(await fenced.connect(role), 1)).toEqual(all("42501"));
    }
  });

  test("GRANT ON ALL TABLES after a takeover reopens the old gate only until the next raise, and admits no session meanwhile", async () => {
    await newJob();
    const old = await job.admit(jobId, 1);
    await job.raise(2);
    await admin.query("GRANT ALL ON ALL TABLES IN SCHEMA fence TO invoice_app");
    // The session that could have come back in has been ended; a new one is refused by the row and by the sentinel.
    await expect(old.query("SELECT 1")).rejects.toThrow();
    expect(await failure(job.admit(jobId, 1))).toMatchObject({ code: "LF001" });
    expect(await failure(job.admit(jobId, 2))).toMatchObject({ code: "LF010" });
    expect(await openGates()).toEqual(expect.arrayContaining([1, 2]));
    await job.raise(3);
    expect(await openGates()).toEqual([3]);
    await job.admit(jobId, 3); // the raise has closed the sentinel too
    await admin.query("REVOKE ALL ON ALL TABLES IN SCHEMA fence FROM invoice_app");
  });

  test("INV-3: whoever is inside a gate that stands open against the rules is waited for too", async () => {
    await newJob();
    await job.raise(2);
    await admin.query(`GRANT UPDATE ON fence.gate_${jobId}_1 TO low`);
    const inside = await fenced.connect("low"); // not admitted, so not ended
    await inside.query(`BEGIN READ WRITE; ${enterLockSql(jobId, 1)}`);
    const raising = job.raise(3, { drainMs: 0 });
    const waits =
      "SELECT EXISTS (SELECT FROM pg_locks WHERE relation = $1::regclass AND mode = 'ExclusiveLock' AND NOT granted)";
    await until(admin, waits, [`fence.gate_${jobId}_1`]);
    await inside.query("COMMIT");
    await raising;
    expect(await openGates()).toEqual([3]);
  });

  test("the owner's own transactions never wait for each other", async () => {
    await newJob();
    const clients = await Promise.all([1, 2, 3].map(() => job.admit(jobId, 1)));
    for (const client of clients) {
      await client.query("BEGIN READ WRITE; SET LOCAL lock_timeout = '1s'");
      await client.query(enterLockSql(jobId, 1));
      await client.query(enterSelectSql(jobId, 1));
    }
    for (const client of clients) await client.query("COMMIT");
  });

  test("B18: renewals and checks never touch the row, so a REPEATABLE READ owner gets no 40001", async () => {
    await newJob();
    await admin.query(`CREATE TABLE IF NOT EXISTS invoice_${count} (id int PRIMARY KEY, job int REFERENCES fence.job)`);
    await admin.query(`GRANT ALL ON invoice_${count} TO invoice_app`);
    const version = "SELECT xmin::text || ctid::text AS version FROM fence.job WHERE id = $1";
    const before = await admin.query(version, [jobId]);
    const owner = await job.admit(jobId, 1);
    for (const level of ["REPEATABLE READ", "SERIALIZABLE"]) {
      await owner.query(`BEGIN ISOLATION LEVEL ${level} READ WRITE`);
      await owner.query(enterLockSql(jobId, 1));
      await owner.query("SELECT * FROM fence.job WHERE id = $1", [jobId]);
      for (let n = 0; n < 20; n++) {
        await job.row();
        await (await job.admit(jobId, 1)).end();
      }
      await owner.query(`INSERT INTO invoice_${count} VALUES ($1, $2)`, [level.length, jobId]);
      await owner.query("COMMIT");
    }
    expect((await admin.query(version, [jobId])).rows[0].version.split("(")[1]).toBe(
      before.rows[0].version.split("(")[1],
    );
  });

  test("a foreign key to the row of the job does not deadlock with a raise", async () => {
    await newJob();
    await admin.query(`CREATE TABLE paid_${count} (job int REFERENCES fence.job)`);
    const holder = await fenced.connectAdmin();
    await holder.query("BEGIN");
    await holder.query(`INSERT INTO paid_${count} VALUES ($1)`, [jobId]); // KEY SHARE on the row, held
    await job.raise(2);
    await holder.query("COMMIT");
  });
});
