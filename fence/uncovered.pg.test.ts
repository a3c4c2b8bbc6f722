import { execFileSync } from "node:child_process";
import { existsSync } from "node:fs";
import { join } from "node:path";
import type { Client } from "pg";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { type Fenced, failure, startFenced, until } from "../testing/fenced.ts";
import { postgresVersions } from "../testing/postgres.ts";
import { protect, uncovered, unprotect } from "./protect.ts";

const JOB = "billing/invoice-run";

describe.each(postgresVersions().found)("partitions, copies and what is not covered on PostgreSQL %i", (version) => {
  let fenced: Fenced;
  let admin: Client;
  const code = async (sql: string, client = admin): Promise<string | undefined> =>
    client.query(sql).then(
      () => undefined,
      (error) => error.code,
    );
  const why = async (): Promise<string[]> =>
    (await uncovered(fenced.admin)).map(({ table, why }) => `${table}: ${why}`);

  beforeAll(async () => {
    fenced = await startFenced({ version, settings: { wal_level: "logical" } });
    admin = await fenced.connectAdmin();
    await fenced.raise(1);
  });
  afterAll(() => fenced?.stop());

  test("INV-3: each partition refuses by itself; one that is attached later is listed until its parent is protected again", async () => {
    await admin.query(
      `CREATE TABLE entry (at int, v int) PARTITION BY RANGE (at);
       CREATE TABLE entry_1 PARTITION OF entry FOR VALUES FROM (0) TO (10) PARTITION BY RANGE (at);
       CREATE TABLE entry_1a PARTITION OF entry_1 FOR VALUES FROM (0) TO (5);`,
    );
    expect(await protect(fenced.admin, JOB, ["entry"], { always: true })).toEqual([
      "public.entry",
      expect.stringMatching(/entry_1a?$/),
      expect.stringMatching(/entry_1a?$/),
    ]);
    for (const table of ["entry", "entry_1", "entry_1a"]) {
      expect(await code(`INSERT INTO ${table} VALUES (1, 1)`)).toBe("LF030");
      expect(await code(`TRUNCATE ${table}`)).toBe("LF030");
    }
    expect(await why()).toEqual([]);

    await admin.query("CREATE TABLE entry_2 PARTITION OF entry FOR VALUES FROM (10) TO (20)");
    await admin.query("CREATE TABLE entry_3 (at int, v int); ALTER TABLE entry ATTACH PARTITION entry_3 DEFAULT");
    const noTrigger = "it has no trigger of the fence: protect its topmost parent again";
    expect(await why()).toEqual([`public.entry_2: ${noTrigger}`, `public.entry_3: ${noTrigger}`]);
    expect(await code("INSERT INTO entry VALUES (11, 1)")).toBe("LF030"); // through the parent it is refused already
    expect(await code("INSERT INTO entry_2 VALUES (11, 1)")).toBeUndefined(); // and this is what is not covered
    await protect(fenced.admin, JOB, ["entry"], { always: true });
    expect(await why()).toEqual([]);
    expect(await code("INSERT INTO entry_2 VALUES (11, 1)")).toBe("LF030");
    await admin.query(
      "BEGIN; SELECT fence.enter('billing/invoice-run', 1); INSERT INTO entry VALUES (1, 1), (11, 1), (99, 1); UPDATE entry SET at = 12 WHERE at = 1; COMMIT",
    );
    expect(await unprotect(fenced.admin, ["entry"])).toHaveLength(5);
    expect((await admin.query("SELECT tgname FROM pg_trigger WHERE tgname LIKE 'fence%'")).rows).toEqual([]);
  });

  test("children by inheritance are protected with their parent", async () => {
    await admin.query("CREATE TABLE base (v int); CREATE TABLE child () INHERITS (base)");
    await protect(fenced.admin, JOB, ["base"]);
    expect(await code("INSERT INTO child VALUES (1)")).toBe("LF030");
    expect(await code("UPDATE base SET v = 1")).toBe("LF030");
    await unprotect(fenced.admin, ["base"]);
  });

  test("disabled triggers, foreign owners, and a parent above are listed, each with its reason", async () => {
    await admin.query(
      `CREATE TABLE off (v int); CREATE TABLE owned (v int); CREATE TABLE lone (v int) ; CREATE TABLE top (v int) PARTITION BY LIST (v)`,
    );
    await protect(fenced.admin, JOB, ["off", "owned", "lone"]);
    await admin.query("ALTER TABLE off DISABLE TRIGGER ALL; ALTER TABLE owned OWNER TO invoice_app");
    await admin.query("ALTER TABLE top ATTACH PARTITION lone FOR VALUES IN (1)");
    expect(await why()).toEqual([
      "public.off: its trigger is disabled",
      'public.owned: its owner "invoice_app" is a role of an application, which can disable the trigger',
      "public.top: it has no trigger of the fence: protect its topmost parent again",
    ]);
    await admin.query(
      "CREATE OR REPLACE TRIGGER fence_guard BEFORE INSERT ON top FOR EACH STATEMENT EXECUTE FUNCTION fence.guard('1', 'billing/invoice-run')",
    );
    expect(await why()).toContain("public.top: it has no trigger of the fence: protect its topmost parent again");
    await admin.query("DROP TABLE off, owned, top");
    expect(await why()).toEqual([]);
  });

  test("a table that was loaded from another database, where the number means another job, is refused and listed", async () => {
    await admin.query("CREATE TABLE loaded (v int)");
    await admin.query(
      `CREATE TRIGGER fence_guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON loaded
       FOR EACH STATEMENT EXECUTE FUNCTION fence.guard('1', 'else/wh\\ere "ä"')`,
    );
    const error = await failure(admin.query("BEGIN; SELECT fence.enter('billing/invoice-run', 1); DELETE FROM loaded"));
    await admin.query("ROLLBACK");
    expect(error.code).toBe("LF030");
    expect(error.message).toContain('bound to FencedJob "else/wh\\ere "ä""');
    expect((await why())[0]).toContain("it was loaded from another database");
    await admin.query(
      "CREATE OR REPLACE TRIGGER fence_guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON loaded FOR EACH STATEMENT EXECUTE FUNCTION fence.guard('x')",
    );
    expect(await why()).toEqual(["public.loaded: its trigger names no job: protect it again"]);
    expect(await code("DELETE FROM loaded")).toBe("22P02"); // refused in any case
    await admin.query("DROP TABLE loaded");
    await admin.query("CREATE TABLE odd (v int)");
    await protect(fenced.admin, 'odd/wh\\ere "ä"', ["odd"]); // before the job's first raise, with a name of odd characters
    expect(await why()).toEqual([]);
    expect(await code("DELETE FROM odd")).toBe("LF030");
    await admin.query("DROP TABLE odd");
  });

  test("a subscription's worker writes past the trigger, unless the table was protected with ALWAYS", async () => {
    await admin.query("CREATE DATABASE source");
    const source = await fenced.connectAdmin("source");
    const row = "(id int PRIMARY KEY, v int)";
    await source.query(`CREATE TABLE fed ${row}; CREATE PUBLICATION p FOR TABLE fed`);
    await source.query("SELECT pg_create_logical_replication_slot('s', 'pgoutput')");
    await admin.query(`CREATE TABLE fed ${row}`);
    await protect(fenced.admin, JOB, ["fed"]);
    await admin.query(
      `CREATE SUBSCRIPTION s CONNECTION 'host=${fenced.postgres.host} port=${fenced.postgres.port} user=postgres dbname=source'
       PUBLICATION p WITH (create_slot = false, slot_name = 's', copy_data = false)`,
    );
    await source.query("INSERT INTO fed VALUES (1, 1)");
    await until(admin, "SELECT count(*) = 1 FROM fed");
    await protect(fenced.admin, JOB, ["fed"], { always: true });
    await source.query("UPDATE fed SET v = 2; DELETE FROM fed");
    // Failures are counted from 15 on; before that, the worker that met one is gone for some seconds.
    if (version >= 15) await until(admin, "SELECT apply_error_count > 0 FROM pg_stat_subscription_stats");
    else await until(admin, "SELECT NOT active FROM pg_replication_slots");
    expect((await admin.query("SELECT v FROM fed")).rows).toEqual([{ v: 1 }]);
    await admin.query("ALTER SUBSCRIPTION s DISABLE");
    await admin.query("ALTER SUBSCRIPTION s SET (slot_name = NONE)");
    await admin.query("DROP SUBSCRIPTION s");
    await admin.query("DROP TABLE fed");
  });

  test("a dump brings the protection along, and data alone does not get in", async ({ skip }) => {
    const programs = "/usr/lib/postgresql/15/bin";
    if (version > 15 || !existsSync(programs))
      skip("needs a pg_dump that is not older than the server, of Debian's 15");
    const run = (command: string, args: string[], input?: string): string =>
      execFileSync(join(programs, command), args, {
        encoding: "utf8",
        stdio: ["pipe", "pipe", "pipe"],
        env: { ...process.env, PGHOST: fenced.postgres.host, PGPORT: String(fenced.postgres.port), PGUSER: "postgres" },
        ...(input === undefined ? {} : { input }),
      });
    await admin.query("CREATE TABLE paid (v int); INSERT INTO paid VALUES (1)");
    await admin.query("CREATE DATABASE copy");
    await protect(fenced.admin, JOB, ["paid"]);
    run("psql", ["-q", "-v", "ON_ERROR_STOP=1", "copy"], run("pg_dump", ["postgres"]));
    const copy = await fenced.connectAdmin("copy");
    expect((await copy.query("SELECT v FROM paid")).rows).toEqual([{ v: 1 }]);
    expect(await uncovered({ ...fenced.admin, database: "copy" })).toEqual([]);
    expect(await code("DELETE FROM paid", copy)).toBe("LF030");
    expect(await code("SELECT fence.enter('billing/invoice-run', 1)", copy)).toBe("LF003"); // another history
    const data = run("pg_dump", ["-a", "-t", "paid", "postgres"]);
    expect(() => run("psql", ["-q", "-v", "ON_ERROR_STOP=1", "copy"], data)).toThrow(/LF030/);
    run(
      "psql",
      ["-q", "-v", "ON_ERROR_STOP=1", "copy"],
      run("pg_dump", ["-a", "--disable-triggers", "-t", "paid", "postgres"]),
    );
    expect((await copy.query("SELECT v FROM paid")).rowCount).toBe(2);
    expect(await uncovered({ ...fenced.admin, database: "copy" })).toEqual([]); // they are enabled again
    await admin.query("DROP TABLE paid");
  });
});
