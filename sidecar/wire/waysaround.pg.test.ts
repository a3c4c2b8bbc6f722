/**
 * Known ways to write outside of the fence (docs/ways-around.md), each tried through the proxy: as the owner whatever
 * gets written has entered the gate or holds the bracket, and with a closed gate nothing gets written at all.
 */
import type pg from "pg";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { type Fenced, startFenced, until } from "../../testing/fenced.ts";
import { judgedTableSql } from "../../testing/judge.ts";
import { endsAnd14 } from "../../testing/postgres.ts";
import { serveNewJob } from "../../testing/proxy.ts";
import { RawClient } from "../../testing/rawclient.ts";
import { run } from "../../testing/requests.ts";
import { query, sync } from "./messages.ts";

const INSERT = "INSERT INTO w (note) VALUES ('x')";

/** Messages one after the other; an array is one extended pipeline of groups sent at once. */
type Attempt = readonly (string | readonly string[])[];

/** Name → what is sent, and how many rows the owner gets written by it. */
const ATTEMPTS: Record<string, [written: number, attempt: Attempt]> = {
  "BEGIN READ WRITE": [1, ["BEGIN READ WRITE", INSERT, "COMMIT"]],
  "START TRANSACTION READ WRITE": [1, ["START TRANSACTION READ WRITE", INSERT, "COMMIT"]],
  "SET TRANSACTION READ WRITE": [1, ["BEGIN", "SET TRANSACTION READ WRITE", INSERT, "COMMIT"]],
  "SET transaction_read_only": [1, ["BEGIN", "SET transaction_read_only = off", INSERT, "COMMIT"]],
  "SET LOCAL transaction_read_only": [1, ["BEGIN", "SET LOCAL transaction_read_only = off", INSERT, "COMMIT"]],
  "SET TRANSACTION in one message": [1, [`BEGIN; SET TRANSACTION READ WRITE; ${INSERT}; COMMIT`]],
  "set_config of the transaction": [
    1,
    ["BEGIN", "SELECT set_config('transaction_read_only', 'off', false)", INSERT, "COMMIT"],
  ],
  "session characteristics (pgjdbc setReadOnly(false))": [
    1,
    ["SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE", INSERT],
  ],
  "SET default_transaction_read_only": [1, ["SET default_transaction_read_only = off", INSERT]],
  "set_config of the default": [1, ["SELECT set_config('default_transaction_read_only', 'off', false)", INSERT]],
  "set_config of the default, then pipelined": [
    1,
    [["SELECT set_config('default_transaction_read_only', 'off', false)", INSERT]],
  ],
  "a read-only session that opens itself, pipelined": [
    0,
    [
      "SET default_transaction_read_only = on",
      ["SELECT set_config('default_transaction_read_only', 'off', false)", INSERT],
    ],
  ],
  "default and COMMIT in one message": [1, [`SET default_transaction_read_only = off; COMMIT; ${INSERT}`]],
  "own READ WRITE behind a COMMIT in one message": [1, [`COMMIT; BEGIN READ WRITE; ${INSERT}; COMMIT`]],
  "RESET, RESET ALL, DISCARD ALL, DEFAULT": [
    4,
    [
      "RESET default_transaction_read_only",
      INSERT,
      "RESET ALL",
      INSERT,
      "DISCARD ALL",
      INSERT,
      "SET default_transaction_read_only TO DEFAULT",
      INSERT,
    ],
  ],
  "COMMIT AND CHAIN": [2, ["BEGIN", INSERT, "COMMIT AND CHAIN", INSERT, "COMMIT"]],
  "COMMIT AND CHAIN in one message": [2, [`BEGIN; ${INSERT}; COMMIT AND CHAIN; ${INSERT}; COMMIT`]],
  "ROLLBACK AND CHAIN": [1, ["BEGIN", INSERT, "ROLLBACK AND CHAIN", INSERT, "COMMIT"]],
  "COMMIT AND CHAIN, pipelined": [2, ["BEGIN", [INSERT, "COMMIT AND CHAIN", INSERT, "COMMIT"]]],
  "ROLLBACK TO a savepoint older than the fence": [
    1,
    ["BEGIN", "SAVEPOINT a", INSERT, "ROLLBACK TO a", INSERT, "COMMIT"],
  ],
  "ROLLBACK TO in one message": [1, [`BEGIN; SAVEPOINT a; ${INSERT}; ROLLBACK TO a; ${INSERT}; COMMIT`]],
  "DO with COMMIT and an own READ WRITE": [
    2,
    [`DO $$ BEGIN COMMIT; SET TRANSACTION READ WRITE; ${INSERT}; COMMIT; ${INSERT}; END $$`],
  ],
  "CALL with COMMIT": [2, ["CALL twice()"]],
  "CALL among other statements": [0, ["SELECT 1; CALL twice()"]],
  "CALL in a block": [0, ["BEGIN", "CALL twice()", "COMMIT"]],
  "a writing CTE": [1, [`WITH x AS (${INSERT} RETURNING 1) SELECT * FROM x`]],
  "a SELECT of a writing function": [1, ["SELECT writes()"]],
  "a view that calls a writing function": [2, ["SELECT * FROM hidden", "SELECT * FROM hidden"]],
  "a view that calls a writing function, behind an opened default": [
    1,
    ["SELECT set_config('default_transaction_read_only', 'off', false)", "SELECT * FROM hidden WHERE true"],
  ],
  "a view that calls a writing function, pipelined behind an opened default": [
    1,
    [["SELECT set_config('default_transaction_read_only', 'off', false)", "SELECT * FROM hidden WHERE NOT false"]],
  ],
  "an operator that calls a writing function": [1, ["SELECT 1 ~~~> 2"]],
  "a view whose function opens the transaction for its own write": [0, ["SELECT * FROM opening"]],
  "EXECUTE of a prepared INSERT": [1, [`PREPARE p AS ${INSERT}`, "EXECUTE p"]],
  "EXPLAIN ANALYZE of an INSERT": [1, [`EXPLAIN ANALYZE ${INSERT}`]],
  "a cursor WITH HOLD over a writing function": [1, ["DECLARE c CURSOR WITH HOLD FOR SELECT writes()", "CLOSE c"]],
  "INSERT … SELECT FOR UPDATE": [1, ["INSERT INTO w (note) SELECT 'x' FROM (SELECT * FROM one FOR UPDATE) y"]],
  "a comment in front of everything": [1, [`/* ; BEGIN READ WRITE */ ${INSERT} -- ; COMMIT`]],
  "a string that looks like an end": [1, [`SELECT 'a''; COMMIT; BEGIN READ WRITE;'; ${INSERT}`]],
  "a backslash in an escape string": [1, [`SELECT E'\\'; COMMIT; BEGIN READ WRITE; '; ${INSERT}`]],
  "a backslash without standard strings": [
    1,
    ["SET standard_conforming_strings = off", `SELECT '\\'; COMMIT; BEGIN READ WRITE; ', 1; ${INSERT}`],
  ],
  "two-phase commit": [0, ["BEGIN", INSERT, "PREPARE TRANSACTION 'w'", "ROLLBACK", "COMMIT PREPARED 'w'"]],
  "SET ROLE": [1, ["SET ROLE NONE", INSERT]],
};

describe.each(endsAnd14())("PostgreSQL %i", (version) => {
  let fenced: Fenced;
  let admin: pg.Client;

  beforeAll(async () => {
    fenced = await startFenced({ version, settings: { max_prepared_transactions: "5" } });
    admin = await fenced.connectAdmin();
    await admin.query(`
      ${judgedTableSql("invoice_app")}
      CREATE TABLE one AS SELECT 1 AS i;
      CREATE FUNCTION writes() RETURNS void LANGUAGE sql AS 'INSERT INTO w VALUES (''f'')';
      CREATE VIEW hidden AS SELECT writes() IS NULL AS n;
      CREATE FUNCTION opens() RETURNS void LANGUAGE plpgsql AS $$ BEGIN
        BEGIN PERFORM set_config('transaction_read_only', 'off', true); EXCEPTION WHEN OTHERS THEN RAISE NOTICE 'refused'; END;
        BEGIN PERFORM set_config('default_transaction_read_only', 'off', true); EXCEPTION WHEN OTHERS THEN RAISE NOTICE 'refused'; END;
        BEGIN ${INSERT}; EXCEPTION WHEN OTHERS THEN RAISE NOTICE 'refused'; END;
      END $$;
      CREATE VIEW opening AS SELECT opens() IS NULL AS n;
      CREATE FUNCTION compares(int, int) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN ${INSERT}; RETURN true; END $$;
      CREATE OPERATOR ~~~> (FUNCTION = compares, LEFTARG = int, RIGHTARG = int);
      CREATE PROCEDURE twice() LANGUAGE plpgsql AS $$ BEGIN ${INSERT}; COMMIT; ${INSERT}; END $$;
      GRANT ALL ON one, hidden, opening TO invoice_app`);
  });
  afterAll(() => fenced.stop());

  async function attempted(attempt: Attempt, how: string, closed: boolean): Promise<boolean[]> {
    const { jobId, proxy } = await serveNewJob(fenced);
    await admin.query("TRUNCATE w");
    // As a client that wants the fence off from the start.
    const client = await RawClient.open({
      port: proxy.port,
      parameters: { options: "-c default_transaction_read_only=off" },
    });
    if (closed) {
      // What a raise leaves behind, without its ending of our session.
      await admin.query(`BEGIN; REVOKE ALL ON fence.gate_${jobId}_1 FROM PUBLIC;
        UPDATE fence.job SET generation = 2, holder = 'other' WHERE id = ${jobId}; COMMIT`);
    }
    for (const part of attempt) {
      if (client.closed) break;
      if (typeof part !== "string") await client.exchange(part.length, ...part.flatMap((sql) => [...run(sql), sync()]));
      else if (how === "simple" || part.includes(";")) await client.exchange(1, query(part));
      else await client.exchange(1, ...run(part), sync());
    }
    await client.end();
    return (await admin.query("SELECT fenced FROM w")).rows.map((row) => row.fenced);
  }

  const hows = version === 14 ? (["extended"] as const) : (["simple", "extended"] as const);
  const table = Object.keys(ATTEMPTS).flatMap((name) => hows.map((how) => [how, name] as const));
  test.each(table)("INV-3 (%s): %s", async (how, name) => {
    const [written, attempt] = ATTEMPTS[name] ?? [0, []];
    expect(await attempted(attempt, how, false)).toEqual(Array<boolean>(written).fill(true));
    expect(await attempted(attempt, how, true)).toEqual([]);
  });

  test("INV-3: a name that touches a number, which PostgreSQL 14 takes for two words, does not hide a COMMIT", async () => {
    const attempt = [`SELECT 1a$a$; COMMIT; BEGIN READ WRITE; ${INSERT}; COMMIT`];
    expect(await attempted(attempt, "simple", false)).toEqual(version === 14 ? [true] : []);
    expect(await attempted(attempt, "simple", true)).toEqual([]);
  });

  test("open: a direct connection with the role's password writes unfenced, and the judge sees it", async () => {
    await admin.query("TRUNCATE w");
    const client = await RawClient.open({ port: fenced.postgres.port });
    await client.exchange(1, query(INSERT));
    await client.end();
    expect((await admin.query("SELECT fenced FROM w")).rows).toEqual([{ fenced: false }]);
  });

  test("open: a DO that looks the proxy's statements up and replaces them writes unfenced behind that", async () => {
    const { proxy } = await serveNewJob(fenced);
    const client = await RawClient.open({ port: proxy.port });
    await client.exchange(1, ...run(INSERT), sync());
    await client.exchange(
      1,
      query(`DO $$ DECLARE own name; BEGIN
        SELECT p.name INTO STRICT own FROM pg_prepared_statements p WHERE statement LIKE 'SELECT FROM fence.gate%';
        EXECUTE format('DEALLOCATE %I', own);
        EXECUTE format('PREPARE %I AS SELECT 1', own);
      END $$`),
    );
    await admin.query("TRUNCATE w");
    await client.exchange(1, ...run(INSERT), sync());
    await client.end();
    expect((await admin.query("SELECT fenced FROM w")).rows).toEqual([{ fenced: false }]);
  });

  test("open: a reload that changes standard_conforming_strings hides a COMMIT in the first message behind it", async () => {
    const { proxy } = await serveNewJob(fenced);
    await admin.query("TRUNCATE w");
    const client = await RawClient.open({ port: proxy.port });
    const reload = async (change: string, setting: string): Promise<void> => {
      await admin.query(`ALTER SYSTEM ${change}`);
      await admin.query("SELECT pg_reload_conf()");
      // A session looks for it when it has got its next message: what this one has heard, the younger ones have.
      await until(admin, "SELECT current_setting('standard_conforming_strings') = $1", [setting]);
    };
    const hiding = `SELECT '\\', '; COMMIT; BEGIN READ WRITE; ${INSERT.replaceAll("'", () => "$$")}; COMMIT; SELECT 'x'`;
    try {
      await reload("SET standard_conforming_strings = off", "off");
      await client.exchange(1, query(hiding));
      expect((await admin.query("SELECT fenced FROM w")).rows).toEqual([{ fenced: false }]);
      // The answer has told.
      await client.exchange(1, query(hiding));
      expect((await admin.query("SELECT fenced FROM w")).rows).toEqual([{ fenced: false }, { fenced: true }]);
    } finally {
      await reload("RESET standard_conforming_strings", "on");
    }
    await client.end();
  });

  test("open: a procedure that gives the bracket's own lock back writes unfenced for the rest of its run", async () => {
    const { proxy } = await serveNewJob(fenced);
    await admin.query("TRUNCATE w");
    const client = await proxy.connect();
    await client.query(`DO $$ BEGIN PERFORM pg_advisory_unlock_all(); ${INSERT}; END $$`);
    expect((await admin.query("SELECT fenced FROM w")).rows).toEqual([{ fenced: false }]);
  });
});
