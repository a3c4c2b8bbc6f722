/**
 * Attempts to hide a transaction's end, or the proxy's own statements, from the proxy, found by attacking it: whatever
 * gets written must have been written inside the gate. Named ways around are in waysaround.pg.test.ts.
 */
import type pg from "pg";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { type Fenced, startFenced, until } from "../../testing/fenced.ts";
import { judgedTableSql } from "../../testing/judge.ts";
import { oldestAndNewest } from "../../testing/postgres.ts";
import { serveNewJob } from "../../testing/proxy.ts";
import { RawClient } from "../../testing/rawclient.ts";
import { group, run } from "../../testing/requests.ts";
import {
  bind,
  closeStatement,
  cstring,
  describeStatement,
  execute,
  FRONT,
  message,
  parse,
  query,
  sync,
} from "./messages.ts";

const INSERT = "INSERT INTO w (note) VALUES ($$x$$)";
const COMMITTING_DO = `DO $d$ BEGIN COMMIT; SET TRANSACTION READ WRITE; ${INSERT}; END $d$`;
/** Longer than the 64 KiB of a Parse that are looked at. */
const LONG = `/*${"x".repeat(70_000)}*/`;
/** PostgreSQL cuts the names of statements and portals to 63 bytes. */
const N63 = "n".repeat(63);
const text = (...parts: (string | number)[]): Buffer =>
  message(
    FRONT.query,
    Buffer.concat([...parts.map((p) => (typeof p === "string" ? Buffer.from(p) : Buffer.from([p]))), Buffer.alloc(1)]),
  );

interface Attack {
  readonly parameters?: Record<string, string>;
  /** Sent while the gate is open, each waiting for one ReadyForQuery. */
  readonly before?: readonly Buffer[][];
  readonly attempt: readonly Buffer[][];
  /** ReadyForQuery of each of `attempt`, 1 unless given. */
  readonly readies?: number;
}

/** Each gets a row written in a transaction that holds neither the gate nor the bracket. */
const ATTACKS: Record<string, Attack> = {
  "a Parse whose first word comes behind 64 KiB of comment is fenced": {
    attempt: [group(`${LONG}BEGIN READ WRITE`, `${LONG}${INSERT}`, `${LONG}COMMIT`)],
  },
  "a read-only session that makes the group's own transaction writable is fenced": {
    parameters: { default_transaction_read_only: "on" },
    attempt: [group("SET TRANSACTION READ WRITE", INSERT)],
  },
  "a read-only session that changes its default and commits within a group is fenced": {
    parameters: { default_transaction_read_only: "on" },
    attempt: [group("SELECT set_config('default_transaction_read_only', 'off', false)", "COMMIT", INSERT)],
  },
  "the proxy's statement that enters cannot be replaced (outside of a block)": {
    before: [group("SELECT 1")],
    attempt: [
      [closeStatement("_fencedjob_enter"), parse("_fencedjob_enter", "SET work_mem = '4MB'"), sync()],
      group(INSERT),
    ],
  },
  "the proxy's statement that enters cannot be replaced (in a block)": {
    before: [group("SELECT 1")],
    attempt: [
      [closeStatement("_fencedjob_lock"), parse("_fencedjob_lock", "SET work_mem = '4MB'"), sync()],
      [query("BEGIN")],
      group(INSERT),
      [query("COMMIT")],
    ],
  },
  "the proxy's statement that enters cannot be replaced by SQL inside a DO": {
    before: [
      group("SELECT 1"),
      [
        query(
          "DO $d$ BEGIN EXECUTE 'DEALLOCATE _fencedjob_enter'; EXECUTE 'PREPARE _fencedjob_enter AS SELECT 1'; END $d$",
        ),
      ],
    ],
    attempt: [group(INSERT)],
  },
  "a name that meant COMMIT and was prepared anew inside a DO is fenced": {
    before: [
      [parse("s", "COMMIT"), sync()],
      [query(`DO $d$ BEGIN EXECUTE 'DEALLOCATE s'; EXECUTE 'PREPARE s AS ${INSERT}'; END $d$`)],
    ],
    attempt: [[...run("BEGIN READ WRITE"), bind("", "s"), execute(""), ...run("COMMIT"), sync()]],
  },
  "a name that meant ROLLBACK and was prepared anew inside a DO is fenced": {
    before: [
      [parse("s", "ROLLBACK"), sync()],
      [query(`DO $d$ BEGIN EXECUTE 'DEALLOCATE s'; EXECUTE 'PREPARE s AS ${INSERT}'; END $d$`)],
    ],
    attempt: [[...run("BEGIN READ WRITE"), bind("", "s"), execute(""), ...run("COMMIT"), sync()]],
  },
  "a name that meant BEGIN and was prepared anew inside a DO cannot use a default opened in front of it": {
    before: [
      group("SELECT 1"),
      [parse("s", "BEGIN"), parse("c", "COMMIT"), sync()],
      [query(`DO $d$ BEGIN EXECUTE 'DEALLOCATE s'; EXECUTE 'PREPARE s AS ${INSERT}'; END $d$`)],
    ],
    attempt: [
      [
        ...group("SELECT set_config('default_transaction_read_only', 'off', false)"),
        describeStatement("c"),
        bind("", "s"),
        execute(""),
        sync(),
      ],
    ],
  },
  "a name that cannot be compared cannot hide a DO that ends its transaction": {
    before: [[parse("é", COMMITTING_DO), sync()]],
    attempt: [[bind("", "é"), execute(""), sync()]],
  },
  "EXECUTE of a DO that the protocol prepared cannot end its transaction": {
    before: [[parse("s", COMMITTING_DO), sync()]],
    attempt: [[query("EXECUTE s")], group("EXECUTE s")],
  },
  "a name that cannot be compared cannot hide the end of a block in front of a DO": {
    before: [[parse("é", "ROLLBACK"), sync()], [query("BEGIN READ WRITE")]],
    attempt: [[bind("", "é"), execute(""), ...run(COMMITTING_DO), sync()]],
  },
  "EXECUTE cannot hide the end of a block in front of a DO": {
    before: [[parse("s", "ROLLBACK"), sync()], [query("BEGIN READ WRITE")]],
    attempt: [[...run("EXECUTE s"), ...run(COMMITTING_DO), sync()]],
  },
  "a name that cannot be compared cannot hide the ROLLBACK of a failed block": {
    before: [[parse("é", "ROLLBACK"), sync()], [query("BEGIN")], [query("SELECT 1/0")]],
    attempt: [[bind("", "é"), execute(""), ...group("BEGIN READ WRITE", INSERT, "COMMIT")]],
  },
  "DEALLOCATE ALL, which leaves the unnamed statement, cannot hide that it is a COMMIT": {
    before: [
      [parse("", "COMMIT"), parse("d", "DEALLOCATE ALL"), sync()],
      [bind("", "d"), execute(""), sync()],
      [...run("BEGIN", "b"), sync()],
      [...run(INSERT, "i"), sync()],
    ],
    attempt: [[bind("", ""), execute(""), ...run("SET transaction_read_only = off", "s"), ...run(INSERT, "w"), sync()]],
  },
  "a statement name beyond 63 bytes cannot hide a COMMIT": {
    attempt: [
      [parse(`${N63}A`, "COMMIT"), bind("", `${N63}B`), execute(""), ...group("BEGIN READ WRITE", INSERT, "COMMIT")],
    ],
  },
  "a portal name beyond 63 bytes cannot hide a COMMIT": {
    attempt: [
      [parse("c", "COMMIT"), bind(`${N63}A`, "c"), execute(`${N63}B`), ...group("BEGIN READ WRITE", INSERT, "COMMIT")],
    ],
  },
  "a name sent in two client encodings cannot hide a COMMIT": {
    before: [
      [query("SET client_encoding = 'LATIN1'")],
      [message(FRONT.parse, Buffer.concat([Buffer.from([0xe9, 0]), cstring("COMMIT"), Buffer.alloc(2)])), sync()],
      [query("SET client_encoding = 'UTF8'")],
    ],
    attempt: [[bind("", "é"), execute(""), ...group("BEGIN READ WRITE", INSERT, "COMMIT")]],
  },
  // SQL EXECUTE runs what the protocol prepared, a COMMIT too: plain for the proxy, and it does not wait for its answer.
  "EXECUTE of a COMMIT that the protocol prepared, pipelined, is fenced behind": {
    before: [[parse("cc", "COMMIT AND CHAIN"), sync()]],
    attempt: [[query("BEGIN")], [query("SELECT 1")], [...group("EXECUTE cc"), ...group(INSERT)], [query("COMMIT")]],
    readies: 2,
  },
  "a simple query inside an unfinished group does not leave `entered` behind": {
    before: [[...run("BEGIN"), query("COMMIT; SELECT 1")]],
    attempt: [[query("BEGIN READ WRITE")], [query(INSERT)], [query("COMMIT")]],
  },
  "an argument named begin of a type named atomic opens no body": {
    attempt: [
      [
        query(
          `CREATE OR REPLACE FUNCTION pg_temp.f(begin atomic) RETURNS int LANGUAGE sql AS 'SELECT 1'; COMMIT; BEGIN READ WRITE; ${INSERT}; COMMIT`,
        ),
      ],
    ],
  },
  "a column named begin in BEGIN ATOMIC … END does not hide what follows": {
    attempt: [
      [
        query(
          `CREATE OR REPLACE FUNCTION pg_temp.g() RETURNS bigint BEGIN ATOMIC SELECT count(begin) FROM spans; END; COMMIT; BEGIN READ WRITE; ${INSERT}; COMMIT`,
        ),
      ],
    ],
  },
  "a column called case in BEGIN ATOMIC … END does not hide what follows": {
    attempt: [
      [
        query(
          `CREATE OR REPLACE FUNCTION pg_temp.h() RETURNS int BEGIN ATOMIC SELECT 1 AS case; END; COMMIT; BEGIN READ WRITE; ${INSERT}; COMMIT`,
        ),
      ],
    ],
  },
  "N'…' without standard_conforming_strings is cut as PostgreSQL does": {
    before: [[query("SET standard_conforming_strings = off")]],
    attempt: [[query(`SELECT N'\\''; COMMIT; BEGIN READ WRITE; ${INSERT}; COMMIT; SELECT '1'`)]],
  },
  "B'…' that goes on in the next line, without standard_conforming_strings, is cut as PostgreSQL does": {
    // There is such a table: what it would have had as a default is not looked at.
    before: [[query("CREATE TEMP TABLE there ()")], [query("SET standard_conforming_strings = off")]],
    attempt: [
      [
        query(
          `CREATE TEMP TABLE IF NOT EXISTS there (b bit DEFAULT B'0'\n'\\'); COMMIT; BEGIN READ WRITE; ${INSERT}; COMMIT --')`,
        ),
      ],
    ],
  },
  "SJIS asked for in the session ends it before a backslash inside of a character is looked at": {
    before: [[query("SET client_encoding = 'SJIS'")]],
    attempt: [[text("SET a.b = E'", 0x95, 0x5c, `'; COMMIT; BEGIN READ WRITE; ${INSERT}; COMMIT; SET a.c = '1'`)]],
  },
  "standard_conforming_strings changed in an unfinished group does not hide a COMMIT in the query that ends it": {
    attempt: [
      [
        ...run("BEGIN"),
        ...run("SELECT set_config('standard_conforming_strings', 'off', false)"),
        query(`SELECT '\\', '; COMMIT; BEGIN READ WRITE; ${INSERT}; COMMIT; SELECT 'x'`),
      ],
    ],
  },
  "SJIS: a half-width katakana is one byte": {
    before: [[query("SET client_encoding = 'SJIS'")]],
    attempt: [[text("SELECT '", 0xb1, `'; COMMIT; BEGIN READ WRITE; ${INSERT}; COMMIT; SELECT '1'`)]],
  },
  "SJIS asked for in the startup message is noticed": {
    parameters: { client_encoding: "SJIS" },
    attempt: [[text("SET a.b = E'", 0x95, 0x5c, `'; COMMIT; BEGIN READ WRITE; ${INSERT}; COMMIT; SET a.c = '1'`)]],
  },
};

describe.each(oldestAndNewest())("PostgreSQL %i", (version) => {
  let fenced: Fenced;
  let admin: pg.Client;

  beforeAll(async () => {
    fenced = await startFenced({ version, settings: { max_prepared_transactions: "5", max_connections: "40" } });
    admin = await fenced.connectAdmin();
    await admin.query(`
      CREATE DOMAIN atomic AS int;
      CREATE TABLE spans (begin int);
      ${judgedTableSql("invoice_app")}
      GRANT ALL ON spans TO invoice_app; GRANT TEMP ON DATABASE postgres TO invoice_app`);
  });
  afterAll(() => fenced.stop());

  const rows = async (): Promise<boolean[]> =>
    (await admin.query("SELECT fenced FROM w")).rows.map((row) => row.fenced);

  test.each(Object.keys(ATTACKS))("INV-3: %s", async (name) => {
    const { parameters = {}, before = [], attempt, readies = 1 } = ATTACKS[name] as Attack;
    const { proxy } = await serveNewJob(fenced);
    await admin.query("TRUNCATE w");
    const client = await RawClient.open({ port: proxy.port, parameters });
    for (const parts of [...before, ...attempt]) {
      if (!client.closed)
        await client.exchange(
          parts.filter((p) => p.equals(sync()) || p[0] === FRONT.query).length || readies,
          ...parts,
        );
    }
    await client.end();
    expect((await rows()).filter((isFenced) => !isFenced)).toEqual([]);
  });

  test("names of the proxy are refused before they reach the server", async () => {
    const { proxy } = await serveNewJob(fenced);
    const client = await RawClient.open({ port: proxy.port });
    for (const request of [
      parse("_fencedjob_x", "SELECT 1"),
      bind("_fencedjob_x", ""),
      bind("", "_fencedjob_x"),
      execute("_fencedjob_x"),
      closeStatement("_fencedjob_x"),
      describeStatement("_fencedjob_x"),
    ]) {
      const answers = await client.exchange(1, request, sync());
      expect(answers).toEqual([expect.stringContaining("C=42939"), "Z I"]);
    }
  });

  test("INV-13: PREPARE … TRANSACTION with a long comment inside is refused", async () => {
    const { job, proxy } = await serveNewJob(fenced);
    const client = await RawClient.open({ port: proxy.port });
    for (const sql of ["BEGIN", INSERT]) await client.exchange(1, query(sql));
    await client.exchange(1, ...group(`PREPARE ${LONG} TRANSACTION 'attack'`));
    await client.end();
    const outcome = await job.raise(2).then(
      () => "raised",
      (error) => `${error.code} ${error.detail}`,
    );
    await admin.query("ROLLBACK PREPARED 'attack'").catch(() => {});
    expect(outcome).toBe("raised");
  });

  test("INV-10: an INSERT and its COMMIT in an unfinished group are not called 'nothing of it was committed'", async () => {
    const { proxy } = await serveNewJob(fenced);
    await admin.query("TRUNCATE w");
    const client = await RawClient.open({ port: proxy.port });
    client.send(...run(INSERT), ...run("COMMIT"), ...run("SELECT pg_sleep(60)"));
    await until(admin, "SELECT count(*) = 1 FROM w");
    proxy.permit.lose();
    await client.until(() => client.transcript.at(-1)?.startsWith("E") === true);
    // The tag of the COMMIT was never seen: it is unknown, not refused.
    expect(client.transcript.at(-1)).toMatch(/C=08007/);
  });

  test("INV-10: a column called end in BEGIN ATOMIC … END does not cost the session after its COMMIT", async () => {
    const { proxy } = await serveNewJob(fenced);
    const client = await RawClient.open({ port: proxy.port });
    const answers = await client.exchange(
      1,
      query(
        `CREATE OR REPLACE FUNCTION pg_temp.e() RETURNS int BEGIN ATOMIC SELECT 1 AS end; SELECT 2; END; ${INSERT}`,
      ),
    );
    expect(answers).toEqual(["C CREATE FUNCTION·", "C INSERT 0 1·", "Z I"]);
  });

  test("INV-3 (PostgreSQL 15): a large object of a read-only session is written inside the gate", async () => {
    const { proxy, jobId } = await serveNewJob(fenced);
    const client = await RawClient.open({ port: proxy.port, parameters: { default_transaction_read_only: "on" } });
    await admin.query(`REVOKE ALL ON fence.gate_${jobId}_1 FROM PUBLIC`);
    await client.exchange(1, ...group("SELECT lo_from_bytea(0, 'x')"));
    expect((await admin.query("SELECT count(*)::int AS n FROM pg_largeobject_metadata")).rows).toEqual([{ n: 0 }]);
  });
});
