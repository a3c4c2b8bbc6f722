import pg from "pg";
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { type Fenced, failure, type JobOfTest, runSessionStart, startFenced } from "../testing/fenced.ts";
import { postgresVersions } from "../testing/postgres.ts";
import { enterLockSql, refuseSql, sessionStartSteps } from "./enter.ts";

describe.each(postgresVersions().found)("admission of sessions on PostgreSQL %i", (version) => {
  let fenced: Fenced;
  let admin: pg.Client;
  let job: JobOfTest;
  let jobId: number;
  let incarnation: string;
  let count = 0;

  beforeAll(async () => {
    fenced = await startFenced({ version });
    admin = await fenced.connectAdmin();
  });
  beforeEach(async () => {
    job = fenced.job(`test/admission-${++count}`);
    ({ jobId, incarnation } = await job.raise(1));
  });
  afterAll(() => fenced?.stop());

  const registered = async (): Promise<number> =>
    (await admin.query("SELECT count(*)::int AS n FROM fence.session WHERE job_id = $1", [jobId])).rows[0].n;

  test("a session of the current generation is admitted and registered; the sentinel refuses it", async () => {
    const client = await job.admit(jobId, 1);
    const { rows } = await admin.query("SELECT pid, generation::int, holder FROM fence.session WHERE job_id = $1", [
      jobId,
    ]);
    const { rows: own } = await client.query("SELECT pg_backend_pid() AS pid");
    expect(rows).toEqual([{ pid: own[0].pid, generation: 1, holder: "uid-1" }]);
    expect((await client.query("SHOW default_transaction_read_only")).rows[0].default_transaction_read_only).toBe("on");
  });

  test("INV-3: a session of an older generation, or of another holder, is refused with the reason", async () => {
    await job.raise(2);
    const error = await failure(job.admit(jobId, 1));
    expect(error).toMatchObject({ code: "LF001" });
    expect(error.message).toBe(`LF001: generation 1 of FencedJob "test/admission-${count}" is over`);
    expect(error.detail).toMatch(
      /^Pod invoice-run-2 raised the fence to generation 2 at \d\d:\d\d:\d\dZ; this pod holds generation 1\.$/,
    );
    expect(await failure(job.admit(jobId, 2, { holder: "uid-1" }))).toMatchObject({ code: "LF001" });
    expect(await registered()).toBe(0);
  });

  test("a session of another history is refused", async () => {
    await admin.query("UPDATE fence.job SET incarnation = 'another/history' WHERE id = $1", [jobId]);
    expect(await failure(job.admit(jobId, 1))).toMatchObject({ code: "LF003" });
    expect(await failure(job.admit(999_999, 1))).toMatchObject({ code: "LF003" });
  });

  test("INV-1: a row below the session's generation is that of another history: nobody has taken over", async () => {
    const error = await failure(job.admit(jobId, 3));
    expect(error).toMatchObject({ code: "LF003" });
    expect(error.message).toContain("generation 3 of FencedJob");
    expect(error.message).toContain("was never raised in this history");
    expect(error.detail).toContain("The fence is at generation 1 here");
  });

  test("INV-10: a row that is right is not enough: the session must be in the history that the pod's raise was answered from", async () => {
    const error = await failure(job.admit(jobId, 1, { incarnation: "7/2/5/16385" }));
    expect(error).toMatchObject({ code: "LF003" });
    expect(error.detail).toContain(`Raised in 7/2/5/16385, this is ${incarnation}`);
    await job.admit(jobId, 1, { incarnation });
  });

  test("a role that takes another one as it logs in raises and is admitted once that one may, too", async () => {
    await admin.query("CREATE ROLE taken; GRANT taken TO invoice_app; ALTER ROLE invoice_app SET role = taken");
    try {
      expect(await failure(job.raise(2))).toMatchObject({ code: "LF012" });
      expect(await failure(job.admit(jobId, 1))).toMatchObject({ code: "42501" });
      await admin.query("GRANT fence_sidecar TO taken");
      await job.raise(2);
      const client = await job.admit(jobId, 2);
      expect((await client.query("SELECT current_user AS name")).rows).toEqual([{ name: "taken" }]);
      expect((await job.raise(3)).sessionsEnded).toBe(1);
    } finally {
      await admin.query("ALTER ROLE invoice_app RESET role");
    }
  });

  test("INV-13: a session cannot leave its job's register by being admitted to another job", async () => {
    const client = await job.admit(jobId, 1);
    const other = fenced.job(`test/admission-other-${count}`);
    const { jobId: otherId } = await other.raise(1);
    const admitThere = client.query(
      `BEGIN READ WRITE; ${enterLockSql(otherId, 1)}; SELECT fence.admit_session(${otherId}, 1, 'uid-1'); COMMIT`,
    );
    expect(await failure(admitThere)).toMatchObject({ code: "LF021" });
    await client.query("ROLLBACK; SELECT pg_advisory_lock(42)");
    expect(await job.raise(2)).toMatchObject({ sessionsEnded: 1 });
    expect((await admin.query("SELECT pg_try_advisory_xact_lock(42) AS free")).rows).toEqual([{ free: true }]);
  });

  test("admission outside the gate is refused: a raise would not wait for it", async () => {
    const client = await fenced.connect();
    await client.query("SELECT fence.begin_session()");
    await client.query("BEGIN READ WRITE");
    const error = await failure(client.query("SELECT fence.admit_session($1, 1, 'uid-1')", [jobId]));
    expect(error).toMatchObject({ code: "LF021" });
    await client.query("ROLLBACK");
  });

  test("INV-2: admission itself compares holder and history, not only the check in front of the gate", async () => {
    const client = await fenced.connect();
    await client.query("SELECT fence.begin_session()");
    const admitAs = async (holder: string): Promise<string | undefined> => {
      await client.query(`BEGIN READ WRITE; ${enterLockSql(jobId, 1)}`);
      const admitted = client.query("SELECT fence.admit_session($1, 1, $2)", [jobId, holder]);
      const code = await admitted.then(
        () => undefined,
        (error) => error.code,
      );
      await client.query("ROLLBACK");
      return code;
    };
    expect(await admitAs("uid-other")).toBe("LF001");
    expect(await admitAs("uid-1")).toBeUndefined();
    await admin.query("UPDATE fence.job SET incarnation = 'another/history' WHERE id = $1", [jobId]);
    expect(await admitAs("uid-1")).toBe("LF003");
  });

  test("a session whose read-only default was lost on the way, or is lost by RESET ALL, is refused", async () => {
    const { host, port } = fenced.postgres;
    const client = new pg.Client({ host, port, user: "invoice_app", database: "postgres" });
    await client.connect();
    expect(await failure(runSessionStart(client, jobId, job.identity(1)))).toMatchObject({ code: "LF014" });
    await client.query("SET default_transaction_read_only = on");
    expect(await failure(runSessionStart(client, jobId, job.identity(1)))).toMatchObject({ code: "LF014" });
    await client.end();
  });

  test("a pooler in transaction mode is noticed: the next message meets another server session", async () => {
    const [first, second] = [await fenced.connect(), await fenced.connect()];
    const steps = sessionStartSteps(jobId, job.identity(1), incarnation);
    await first.query(steps[0]!.sql);
    await first.query(steps[1]!.sql);
    expect(await failure(second.query(steps[2]!.sql))).toMatchObject({ code: "LF014" });
  });

  const unfenceable: [string, string, RegExp][] = [
    ["a superuser", "CREATE ROLE r LOGIN SUPERUSER", /It is a superuser,/],
    [
      "a member of a superuser",
      "CREATE ROLE r LOGIN NOINHERIT; GRANT postgres TO r",
      /superuser \(through role "postgres"\)/,
    ],
    [
      "a member of the schema's owner",
      "CREATE ROLE r LOGIN NOINHERIT; GRANT fence_owner TO r",
      /owner of the fence schema/,
    ],
    ["pg_write_all_data", "CREATE ROLE r LOGIN; GRANT pg_write_all_data TO r", /write or maintain/],
    [
      "pg_write_all_data two roles away, not inherited",
      "CREATE ROLE r LOGIN NOINHERIT; CREATE ROLE r2 NOINHERIT; GRANT pg_write_all_data TO r2; GRANT r2 TO r",
      /write or maintain/,
    ],
    [
      "DELETE on all tables",
      "CREATE ROLE r LOGIN; GRANT DELETE ON ALL TABLES IN SCHEMA fence TO r",
      /write or maintain/,
    ],
    [
      "TRUNCATE on all tables",
      "CREATE ROLE r LOGIN; GRANT TRUNCATE ON ALL TABLES IN SCHEMA fence TO r",
      /write or maintain/,
    ],
    [
      "INSERT on all tables",
      "CREATE ROLE r LOGIN; GRANT INSERT ON ALL TABLES IN SCHEMA fence TO r",
      /write or maintain/,
    ],
    ...(version < 16
      ? ([["CREATEROLE", "CREATE ROLE r LOGIN CREATEROLE", /become any other role/]] as [string, string, RegExp][])
      : []),
    ...(version >= 17
      ? ([["pg_maintain", "CREATE ROLE r LOGIN; GRANT pg_maintain TO r", /write or maintain/]] as [
          string,
          string,
          RegExp,
        ][])
      : []),
  ];
  test.each(unfenceable)("INV-3: a role that no gate can refuse is not admitted: %s", async (_name, sql, reason) => {
    await admin.query(sql);
    try {
      await admin.query("GRANT fence_sidecar TO r WITH ADMIN OPTION");
      if (version >= 16) await admin.query("GRANT fence_sidecar TO r WITH INHERIT TRUE");
      else await admin.query("ALTER ROLE r INHERIT");
      const error = await failure(job.admit(jobId, 1, { role: "r" }));
      expect(error).toMatchObject({ code: "LF010" });
      expect(error.message).toBe('LF010: role "r" cannot be fenced');
      expect(error.detail).toMatch(reason);
      expect(error.hint).toContain("fencedjob db role");
    } finally {
      await admin.query("DROP OWNED BY r; DROP ROLE r; DROP ROLE IF EXISTS r2");
    }
  });

  test("the sentinel judges by behaviour: a role that the catalogue check lets pass fails at the probe", async () => {
    const probe = sessionStartSteps(jobId, job.identity(1), incarnation).at(-1)!;
    expect(probe).toMatchObject({ expect: "42501", onUnexpected: "LF010" });
    for (const role of ["postgres", "invoice_app"]) {
      const client = await fenced.connect(role);
      const outcome = await client.query(probe.sql).then(
        () => "success",
        (error) => error.code,
      );
      expect(outcome).toBe(role === "postgres" ? "success" : "42501");
    }
  });

  test("INV-13: a role whose sessions a takeover could not end is not admitted", async () => {
    await admin.query("REVOKE pg_signal_backend FROM fence_owner");
    try {
      const error = await failure(job.admit(jobId, 1));
      expect(error).toMatchObject({ code: "LF012" });
      expect(error.hint).toContain("GRANT invoice_app TO fence_owner");
      await admin.query("GRANT invoice_app TO fence_owner");
      await job.admit(jobId, 1);
      expect(await job.raise(2)).toMatchObject({ sessionsEnded: 1 });
    } finally {
      await admin.query("REVOKE invoice_app FROM fence_owner; GRANT pg_signal_backend TO fence_owner");
    }
  });

  test("a role without membership in fence_sidecar is told what it lacks", async () => {
    await admin.query("CREATE ROLE bare LOGIN");
    const error = await failure(job.raise(2, { address: { ...fenced.address, user: "bare" } }));
    expect(error).toMatchObject({ code: "LF012", final: false });
    expect(error.hint).toContain("fencedjob db role");
    await admin.query("DROP ROLE bare");
  });

  /** Rows of sessions that ended long ago: no process of a server has such a pid. */
  const leaveRows = (count: number) =>
    admin.query(
      "INSERT INTO fence.session SELECT -n, now() - interval '1 day', $1, 1, 'uid-1' FROM generate_series(1, $2::int) n",
      [jobId, count],
    );
  /** Admissions in one session, as a pooler that hands it on makes them: a registration is made once. */
  const admitAgain = async (client: pg.Client, times: number): Promise<number> => {
    const { rows } = await client
      .query(
        `BEGIN READ WRITE; ${enterLockSql(jobId, 1)};
       SELECT fence.admit_session(${jobId}, 1, 'uid-1') FROM generate_series(1, ${times});
       SELECT seq_tup_read + idx_tup_fetch AS read FROM pg_stat_xact_user_tables WHERE relid = 'fence.session'::regclass;
       COMMIT`,
      )
      .then((results) => (results as unknown as pg.QueryResult[])[3]!);
    return Number(rows[0].read);
  };

  test("INV-13: the register does not grow for ever: sessions that have ended are forgotten by one admission in 32", async () => {
    await leaveRows(50);
    const client = await job.admit(jobId, 1);
    await admitAgain(client, 1000); // all of them spare the rows once in 10^13 runs
    expect(await registered()).toBe(1);
    await leaveRows(50);
    await job.raise(2);
    expect(await registered()).toBe(0);
  });

  test("INV-13: an admission does not look at each of a thousand sessions", async () => {
    await leaveRows(1000);
    const client = await job.admit(jobId, 1);
    await leaveRows(1000 - (await registered()));
    // Rows that cannot be forgotten, as those of sessions that are open.
    await admin.query("BEGIN");
    await admin.query("SELECT FROM fence.session WHERE job_id = $1 FOR UPDATE", [jobId]);
    try {
      // About 32 of them look, at a thousand rows, and again at them by their numbers as the planner likes; all would be a million.
      expect(await admitAgain(client, 1000)).toBeLessThan(250 * 1000);
    } finally {
      await admin.query("ROLLBACK");
    }
  });

  test("INV-13: the raise ends an idle session, one idle in a read-only transaction, and one with an advisory lock", async () => {
    const [idle, reading, locking] = [await job.admit(jobId, 1), await job.admit(jobId, 1), await job.admit(jobId, 1)];
    await reading.query("BEGIN READ ONLY; SELECT 1");
    await locking.query("SELECT pg_advisory_lock(4711)");
    expect(await job.raise(2)).toMatchObject({ sessionsEnded: 3 });
    const { rows } = await admin.query("SELECT pg_try_advisory_lock(4711) AS got");
    expect(rows[0].got).toBe(true);
    for (const client of [idle, reading, locking]) await expect(client.query("SELECT 1")).rejects.toThrow();
    expect(await registered()).toBe(0);
    await admin.query("SELECT pg_advisory_unlock(4711)");
  });

  test("ending sessions spares those of the generation that asks, and of other jobs", async () => {
    await job.raise(2);
    const own = await job.admit(jobId, 2);
    const other = fenced.job(`test/neighbour-${count}`);
    const neighbour = await other.admit((await other.raise(1)).jobId, 1);
    expect((await own.query("SELECT fence.end_sessions($1, 2) AS ended", [jobId]).catch((error) => error)).code).toBe(
      "25006",
    );
    const { rows } = await admin.query("SELECT fence.end_sessions($1, 2) AS ended", [jobId]);
    expect(rows[0].ended).toEqual([]);
    await own.query("SELECT 1");
    await neighbour.query("SELECT 1");
  });

  test("a registered pid that another server process has taken over since is not ended", async () => {
    const bystander = await fenced.connectAdmin();
    const { rows } = await bystander.query("SELECT pg_backend_pid() AS pid");
    await admin.query("INSERT INTO fence.session VALUES ($1, now() - interval '1 day', $2, 1, 'uid-1')", [
      rows[0].pid,
      jobId,
    ]);
    expect(await job.raise(2)).toMatchObject({ sessionsEnded: 0 });
    await bystander.query("SELECT 1");
    expect(await registered()).toBe(0);
  });

  test("INV-3: a session whose role became a superuser since cannot be ended: the raise fails and says which", async () => {
    const client = await job.admit(jobId, 1);
    const { rows } = await client.query("SELECT pg_backend_pid() AS pid");
    await admin.query(
      "CREATE ROLE other_app LOGIN; GRANT fence_sidecar TO other_app; ALTER ROLE invoice_app SUPERUSER",
    );
    try {
      const error = await failure(job.raise(2, { address: { ...fenced.address, user: "other_app" } }));
      expect(error).toMatchObject({ code: "LF012", final: false });
      expect(error.hint).toContain(`pg_terminate_backend(${rows[0].pid})`);
      expect(await job.row()).toMatchObject({ generation: 1 });
    } finally {
      await admin.query("ALTER ROLE invoice_app NOSUPERUSER; DROP ROLE other_app");
    }
    expect(await job.raise(2)).toMatchObject({ sessionsEnded: 1 });
  });

  test("B21: a look-alike schema first in the path, an empty path and a temporary table hijack nothing", async () => {
    await admin.query(
      "CREATE SCHEMA IF NOT EXISTS evil AUTHORIZATION invoice_app; GRANT TEMPORARY ON DATABASE postgres TO invoice_app",
    );
    const evil = await fenced.connect();
    await evil.query("SET default_transaction_read_only = off; SET search_path = evil");
    await evil.query(`
      CREATE OR REPLACE FUNCTION evil.pg_is_in_recovery() RETURNS boolean LANGUAGE sql AS 'SELECT true';
      CREATE OR REPLACE FUNCTION evil.pg_backend_pid() RETURNS int LANGUAGE sql AS 'SELECT 1';
      CREATE OR REPLACE FUNCTION evil.pg_has_role(name, oid, text) RETURNS boolean LANGUAGE sql AS 'SELECT false';
      CREATE OR REPLACE FUNCTION evil.incarnation() RETURNS text LANGUAGE sql AS $$SELECT 'x'$$`);
    for (const path of ["evil, pg_catalog", "evil, fence, pg_catalog", "''", "pg_temp, evil, pg_catalog"]) {
      const { host, port } = fenced.postgres;
      const client = new pg.Client({
        host,
        port,
        user: "invoice_app",
        database: "postgres",
        options: `-c default_transaction_read_only=on -c search_path=${path.replaceAll(" ", "")}`,
      });
      await client.connect();
      await client.query("CREATE TEMP TABLE job (id int, generation bigint)").catch(() => {});
      await runSessionStart(client, jobId, job.identity(1));
      expect(await failure(runSessionStart(client, jobId, job.identity(1, "evil")))).toMatchObject({ code: "LF001" });
      await client.end();
    }
    await evil.query(`DROP SCHEMA evil CASCADE`).catch(() => {});
    await admin.query("DROP SCHEMA IF EXISTS evil CASCADE");
  });

  test("an application cannot change the fence: no write on its tables, no object in its schema, no closing of gates", async () => {
    const app = await fenced.connect();
    await app.query("SET default_transaction_read_only = off");
    for (const sql of [
      "UPDATE fence.job SET generation = 0",
      "DELETE FROM fence.job",
      "DELETE FROM fence.session",
      "INSERT INTO fence.claim VALUES (1, 1, 'x', 'x', 'x')",
      "CREATE TABLE fence.mine ()",
      `DROP TABLE fence.gate_${jobId}_1`,
      "SELECT fence.close_table('fence.never')",
      "SELECT fence.forget_ended_sessions(1)",
    ]) {
      expect(await failure(app.query(sql)), sql).toMatchObject({ code: "42501" });
    }
  });

  test("fence.refuse answers with the code, detail and hint under any role, and only with codes of class LF", async () => {
    await admin.query("DROP ROLE IF EXISTS nobody_special; CREATE ROLE nobody_special LOGIN");
    const client = await fenced.connect("nobody_special");
    const error = await failure(client.query(refuseSql("LF002", "it's \\ unconfirmed", "since 9.2 s", "Retry")));
    expect(error).toMatchObject({
      code: "LF002",
      message: "LF002: it's \\ unconfirmed",
      detail: "since 9.2 s",
      hint: "Retry",
    });
    await client.query("SET standard_conforming_strings = off");
    expect(await failure(client.query(refuseSql("LF002", "it's \\ unconfirmed", "", "")))).toMatchObject({
      message: "LF002: it's \\ unconfirmed",
    });
    expect(await failure(client.query("SELECT fence.refuse('00000', 'a', 'b', 'c')"))).toMatchObject({ code: "22023" });
    await client.end();
  });
});
