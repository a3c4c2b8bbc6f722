/** Statements that no transaction can hold the gate for: CREATE INDEX CONCURRENTLY, VACUUM, CALL with COMMIT inside. */
import type pg from "pg";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { type Fenced, failure, startFenced, until } from "../../testing/fenced.ts";
import { oldestAndNewest } from "../../testing/postgres.ts";
import { type ProxyOfTest, serveNewJob, startFencedProxy } from "../../testing/proxy.ts";
import { RawClient } from "../../testing/rawclient.ts";
import { run } from "../../testing/requests.ts";
import { bind, describeStatement, execute, parse, query, sync } from "./messages.ts";

describe.each(oldestAndNewest())("PostgreSQL %i", (version) => {
  let fenced: Fenced;
  let admin: pg.Client;
  let proxied: ProxyOfTest;

  beforeAll(async () => {
    fenced = await startFenced({ version });
    admin = await fenced.connectAdmin();
    await admin.query("GRANT CREATE ON SCHEMA public TO invoice_app");
    proxied = await startFencedProxy(fenced, 1);
    const client = await proxied.connect();
    await client.query("CREATE TABLE b (i int)");
    await client.query(
      "CREATE PROCEDURE steps(n int) LANGUAGE plpgsql AS $$ BEGIN FOR k IN 1..n LOOP INSERT INTO b VALUES (k); COMMIT; END LOOP; END $$",
    );
    await client.query(
      "CREATE PROCEDURE slow() LANGUAGE plpgsql AS $$ BEGIN FOR k IN 1..1000 LOOP INSERT INTO b VALUES (-k); COMMIT; PERFORM pg_sleep(0.02); END LOOP; END $$",
    );
  });
  afterAll(async () => {
    await proxied.stop();
    await fenced.stop();
  });

  const extended = (client: pg.Client, sql: string): Promise<pg.QueryResult> =>
    client.query({ text: sql, values: [], queryMode: "extended" } as pg.QueryConfig);

  test.each([
    ["simple", (client: pg.Client, sql: string) => client.query(sql)],
    ["extended", extended],
    ["under a name", (client: pg.Client, sql: string) => client.query({ name: sql.slice(0, 30), text: sql })],
  ])("B14, B15: they work for the owner, and the session is as before (%s)", async (_how, send) => {
    const client = await proxied.connect();
    for (const sql of [
      "CREATE INDEX CONCURRENTLY b_i ON b (i)",
      "REINDEX INDEX CONCURRENTLY b_i",
      "VACUUM b",
      "DROP INDEX CONCURRENTLY b_i",
    ]) {
      await send(client, sql);
      expect((await client.query("SHOW default_transaction_read_only")).rows[0].default_transaction_read_only).toBe(
        "on",
      );
    }
    await client.query("TRUNCATE b");
    await send(client, "CALL steps(3)");
    await send(client, "DO $$ BEGIN INSERT INTO b VALUES (9); COMMIT; INSERT INTO b VALUES (10); END $$");
    expect((await client.query("SELECT i FROM b ORDER BY i")).rows.map((row) => row.i)).toEqual([1, 2, 3, 9, 10]);
    expect(
      (
        await client.query(
          "SELECT count(*)::int AS n FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()",
        )
      ).rows,
    ).toEqual([{ n: 0 }]);
    await client.query("BEGIN");
    expect(await failure(send(client, "VACUUM b"))).toMatchObject({ code: "25001" });
    await client.query("ROLLBACK");
  });

  test.each([
    ["simple", (client: pg.Client, sql: string) => client.query(sql)],
    ["extended", extended],
  ])("what cannot be in a block only because its table is partitioned works, too (%s)", async (_how, send) => {
    const client = await proxied.connect();
    await client.query("DROP TABLE IF EXISTS parted; CREATE TABLE parted (i int) PARTITION BY LIST (i)");
    await client.query(
      "CREATE TABLE parted_1 PARTITION OF parted FOR VALUES IN (1); CREATE INDEX parted_i ON parted (i)",
    );
    for (const sql of ["REINDEX TABLE parted", "REINDEX INDEX parted_i", "CLUSTER parted USING parted_i"]) {
      await send(client, sql);
    }
    // … and what can be in a block is let in there.
    for (const sql of ["BEGIN", "REINDEX TABLE parted_1", "CLUSTER parted_1 USING parted_1_i_idx", "COMMIT"]) {
      await send(client, sql);
    }
  });

  test.each([["CALL steps(2)"], ["DO $$ BEGIN INSERT INTO b VALUES (1); COMMIT; INSERT INTO b VALUES (2); END $$"]])(
    "an unnamed statement that an earlier group parsed outlives the bracket: %s",
    async (sql) => {
      const client = await RawClient.open({ port: proxied.port });
      await client.exchange(1, query("TRUNCATE b"));
      for (let round = 0; round < 2; round++) {
        // As pgx and lib/pq do it: describe in one group, run in the next, and again.
        if (round === 0) await client.exchange(1, parse("", sql), describeStatement(""), sync());
        const answers = await client.exchange(1, bind("", ""), execute(""), sync());
        expect(answers).toEqual(["2", expect.stringMatching(/^C (CALL|DO)/), "Z I"]);
      }
      // The closing seat belt leaves it alone, too.
      await client.exchange(1, parse("open", "SET default_transaction_read_only = off"), sync());
      await client.exchange(1, bind("", "open"), execute(""), sync());
      await client.exchange(1, bind("", ""), execute(""), sync());
      expect((await admin.query("SELECT i FROM b ORDER BY i")).rows.map((row) => row.i)).toEqual([1, 1, 1, 2, 2, 2]);
      // Nothing of the bracket is left in the session.
      const left = await client.exchange(
        1,
        query("SELECT count(*) FROM pg_prepared_statements WHERE name LIKE '\\_fencedjob\\_a%'"),
      );
      expect(left).toContainEqual(expect.stringMatching(/^D .*0$/));
      await client.end();
    },
  );

  test.each([
    ["simple", (client: pg.Client, sql: string) => client.query(sql)],
    ["extended", extended],
  ])("they work under a role that the session has taken, which owns the tables (%s)", async (how, send) => {
    await admin.query(`CREATE ROLE owner_${how}; GRANT owner_${how} TO invoice_app;
      CREATE TABLE owned_${how} (i int); ALTER TABLE owned_${how} OWNER TO owner_${how}; GRANT CREATE ON SCHEMA public TO owner_${how}`);
    const client = await proxied.connect();
    await client.query(`SET ROLE owner_${how}`);
    await send(client, `CREATE INDEX CONCURRENTLY ON owned_${how} (i)`);
    await send(client, `DO $$ BEGIN INSERT INTO owned_${how} VALUES (1); COMMIT; END $$`);
    expect((await client.query(`SELECT i FROM owned_${how}`)).rows).toEqual([{ i: 1 }]);
  });

  test("their errors are the server's own, and what follows is fenced again", async () => {
    const client = await proxied.connect();
    expect(await failure(client.query("CREATE INDEX CONCURRENTLY ON b (nosuch)"))).toMatchObject({ code: "42703" });
    expect(await failure(extended(client, "CALL nosuch()"))).toMatchObject({ code: "42883" });
    expect(await failure(client.query("DO $$ BEGIN RAISE EXCEPTION 'mine'; END $$"))).toMatchObject({ code: "P0001" });
    await client.query("INSERT INTO b VALUES (1)");
    expect((await client.query("SHOW default_transaction_read_only")).rows[0].default_transaction_read_only).toBe("on");
  });

  test("INV-3: DISCARD ALL, which would give the bracket's lock back, is refused inside of one", async () => {
    const client = await RawClient.open({ port: proxied.port });
    await admin.query("TRUNCATE b; ALTER ROLE invoice_app CREATEDB");
    await client.exchange(1, parse("all", "DISCARD ALL"), sync());
    // Behind a statement that commits at its end, PostgreSQL takes DISCARD ALL for one that is alone.
    for (const [i, discard] of [run("DISCARD ALL"), [bind("", "all"), execute("")]].entries()) {
      const first = run(`CREATE DATABASE discarded_${i}`);
      const answers = await client.exchange(1, ...first, ...discard, ...run("CALL steps(2)"), sync());
      expect(answers.filter((line) => /^[CEZ]/.test(line))).toEqual([
        "C CREATE DATABASE·",
        expect.stringContaining("C=LF020"),
        "Z I",
      ]);
    }
    expect((await admin.query("SELECT count(*)::int AS n FROM b")).rows).toEqual([{ n: 0 }]);
    await client.end();
  });

  test("pipelined before and behind other groups they keep the order; inside another's group they are refused", async () => {
    const client = await RawClient.open({ port: proxied.port });
    await client.exchange(1, query("TRUNCATE b"));
    const answers = await client.exchange(
      4,
      ...run("INSERT INTO b VALUES (1)"),
      sync(),
      ...run("CALL steps(2)"),
      sync(),
      ...run("SELECT count(*) FROM b"),
      sync(),
      query("VACUUM b"),
    );
    expect(answers.filter((line) => /^[CDEZ]/.test(line))).toEqual(
      ["C INSERT 0 1·", "Z I", "C CALL·", "Z I", "D ····3", "C SELECT 1·", "Z I", "C VACUUM·", "Z I"].map((line) =>
        line.startsWith("D") ? expect.stringContaining("3") : line,
      ),
    );
    for (const group of [
      [...run("INSERT INTO b VALUES (7)"), ...run("CALL steps(1)")],
      [...run("CALL steps(1)"), ...run("INSERT INTO b VALUES (7)")],
    ]) {
      const refused = await client.exchange(1, ...group, sync());
      expect(refused.filter((line) => line.startsWith("E"))).toEqual([expect.stringContaining("C=LF020")]);
      expect(refused.at(-1)).toBe("Z I");
    }
    expect(
      (await client.exchange(1, query("SELECT count(*) FROM b WHERE i = 7"))).some((line) => /^D .*0$/.test(line)),
    ).toBe(true);
    expect(
      (await client.exchange(1, query("SHOW default_transaction_read_only"))).some((line) => /^D .*on$/.test(line)),
    ).toBe(true);
    await client.end();
  });

  test.each([["simple"], ["extended"]])(
    "INV-3: a procedure that commits inside is ended by a takeover, and nothing of it commits after (%s)",
    async (how) => {
      const { job, proxy } = await serveNewJob(fenced);
      const client = await proxy.connect();
      await admin.query("TRUNCATE b");
      const calling = failure(how === "simple" ? client.query("CALL slow()") : extended(client, "CALL slow()"));
      await until(admin, "SELECT count(*) > 3 FROM b");
      await job.raise(2);
      const committed = (await admin.query("SELECT count(*) FROM b")).rows[0].count;
      const error = await calling;
      expect(error).toMatchObject({ code: "08007", severity: "FATAL" });
      await admin.query("SELECT pg_sleep(0.1)");
      expect((await admin.query("SELECT count(*) FROM b")).rows[0].count).toBe(committed);
    },
  );

  test.each([["simple"], ["extended"]])("INV-3: a stale one is refused before it starts (%s)", async (how) => {
    const { jobId, proxy } = await serveNewJob(fenced);
    const client = await proxy.connect();
    const holder = await fenced.connectAdmin();
    // The bracket waits behind whoever raises; what it finds then is not its own generation any more.
    await holder.query("SELECT pg_advisory_lock(1279673923, $1)", [jobId]);
    const waiting = failure(
      how === "simple"
        ? client.query("CREATE INDEX CONCURRENTLY stale ON b (i)")
        : extended(client, "CREATE INDEX CONCURRENTLY stale ON b (i)"),
    );
    await until(admin, "SELECT count(*) > 0 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted");
    await admin.query(
      "UPDATE fence.job SET generation = 2, holder = 'other', holder_name = 'other-pod' WHERE id = $1",
      [jobId],
    );
    await holder.query("SELECT pg_advisory_unlock(1279673923, $1)", [jobId]);
    expect(await waiting).toMatchObject({ code: "LF001", severity: "FATAL" });
    expect((await admin.query("SELECT count(*)::int AS n FROM pg_class WHERE relname = 'stale'")).rows).toEqual([
      { n: 0 },
    ]);
  });
});
