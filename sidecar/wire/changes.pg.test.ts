/**
 * INV-3 for whatever changes something that is no row of a table, or is no transaction's: sequences, large objects, COPY,
 * definitions, rights, maintenance, other databases. The owner's statement has its effect; the same one of a generation that is
 * over has none, and says so.
 */
import type pg from "pg";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { type Fenced, startFenced } from "../../testing/fenced.ts";
import { oldestAndNewest } from "../../testing/postgres.ts";
import { type ProxyOfTest, serveNewJob, startFencedProxy } from "../../testing/proxy.ts";
import { RawClient } from "../../testing/rawclient.ts";
import { run } from "../../testing/requests.ts";
import { copyData, copyDone, query, sync } from "./messages.ts";

interface Change {
  /** As an administrator, before; `$N` is a number of this run's own, here and below. */
  readonly given?: string;
  readonly sql: string;
  /** Behind the statement. */
  readonly messages?: readonly Buffer[];
}

const CHANGES: Record<string, Change> = {
  "nextval of a sequence": { sql: "SELECT nextval('s')" },
  "setval of a sequence": { sql: "SELECT setval('s', 1000 + $N)" },
  "ALTER SEQUENCE": { sql: "ALTER SEQUENCE s RESTART 2000$N" },
  "a large object, made": { sql: "SELECT lo_create(100$N)" },
  "a large object, made with its bytes": { sql: "SELECT lo_from_bytea(200$N, 'bytes')" },
  "a large object, written": {
    given: "SELECT lo_create(1); ALTER LARGE OBJECT 1 OWNER TO invoice_app",
    sql: "SELECT lo_put(1, 0, 'bytes of $N')",
  },
  "a large object, written by its descriptor": {
    given: "SELECT lo_create(2); ALTER LARGE OBJECT 2 OWNER TO invoice_app",
    sql: "SELECT lowrite(lo_open(2, 131072), '$N')",
  },
  "a large object, removed": {
    given: "SELECT lo_create(300$N); ALTER LARGE OBJECT 300$N OWNER TO invoice_app",
    sql: "SELECT lo_unlink(300$N)",
  },
  "COPY FROM": { sql: "COPY w FROM STDIN", messages: [copyData(Buffer.from("1\n")), copyDone()] },
  "COPY of what an INSERT returns": { sql: "COPY (INSERT INTO w VALUES (1) RETURNING *) TO STDOUT" },
  "COPY to a program of the server": { sql: "COPY w TO PROGRAM 'cat > /dev/null; touch done_$N'" },
  "COPY to a file of the server": { sql: "COPY w TO '$D/file_$N'" },
  MERGE: { sql: "MERGE INTO w USING (VALUES (1)) n(i) ON false WHEN NOT MATCHED THEN INSERT VALUES (n.i)" },
  TRUNCATE: { given: "INSERT INTO w VALUES (1)", sql: "TRUNCATE w" },
  "SELECT INTO": { sql: "SELECT 1 AS i INTO into_$N" },
  "CREATE TABLE AS": { sql: "CREATE TABLE as_$N AS SELECT 1 AS i" },
  "a materialized view, refreshed": { given: "INSERT INTO w VALUES (1)", sql: "REFRESH MATERIALIZED VIEW m" },
  GRANT: { sql: "GRANT SELECT (i) ON w TO reader_$N", given: "CREATE ROLE reader_$N" },
  COMMENT: { sql: "COMMENT ON TABLE w IS '$N'" },
  "a write under another role": { sql: "SET ROLE other; INSERT INTO w VALUES ($N)" },
  "a write of DO": { sql: "DO $$ BEGIN INSERT INTO w VALUES ($N); END $$" },
  "a DO that commits": {
    sql: "DO $$ BEGIN COMMIT; INSERT INTO w VALUES ($N); COMMIT; INSERT INTO w VALUES (1); END $$",
  },
  "CALL of a procedure that commits": { sql: "CALL twice()" },
  "VACUUM FULL": { sql: "VACUUM FULL w" },
  VACUUM: { given: "TRUNCATE w; INSERT INTO w SELECT generate_series(1, 1000 * $N)", sql: "VACUUM w" },
  "CREATE INDEX CONCURRENTLY": { sql: "CREATE INDEX CONCURRENTLY made_$N ON w (i)" },
  "REINDEX CONCURRENTLY": { sql: "REINDEX INDEX CONCURRENTLY indexed_i" },
  "REINDEX TABLE CONCURRENTLY": { sql: "REINDEX TABLE CONCURRENTLY indexed" },
  "DROP INDEX CONCURRENTLY": {
    given: "CREATE INDEX dropped_$N ON w (i)",
    sql: "DROP INDEX CONCURRENTLY dropped_$N",
  },
  "DETACH PARTITION CONCURRENTLY": {
    given: "CREATE TABLE part_$N PARTITION OF parts FOR VALUES IN ($N); ALTER TABLE part_$N OWNER TO invoice_app",
    sql: "ALTER TABLE parts DETACH PARTITION part_$N CONCURRENTLY",
  },
  "CREATE DATABASE": { sql: "CREATE DATABASE made_$N" },
  "DROP DATABASE": {
    given: "CREATE DATABASE dropped_$N OWNER invoice_app",
    sql: "DROP DATABASE dropped_$N",
  },
  "ALTER SYSTEM": { sql: "ALTER SYSTEM SET work_mem = '$NMB'" },
  "a replication slot": { sql: "SELECT pg_create_physical_replication_slot('slot_$N')" },
  "a write by dblink, in a session of its own": { sql: "SELECT dblink_exec('$L', 'INSERT INTO w VALUES ($N)')" },
};

/** All that one of them changes. */
const STATE = `SELECT jsonb_build_object(
  'tables', (SELECT jsonb_object_agg(relname, ARRAY[relfilenode::text, relpages::text, relacl::text]) FROM pg_class
             WHERE relnamespace = 'public'::regnamespace),
  'columns', (SELECT jsonb_agg(attacl) FROM pg_attribute WHERE attrelid = 'w'::regclass),
  'comments', (SELECT jsonb_agg(description) FROM pg_description WHERE objoid = 'w'::regclass),
  'rows', (SELECT jsonb_build_array(count(*), sum(i), max(ctid::text)) FROM w),
  'viewed', (SELECT count(*) FROM m),
  'sequence', (SELECT jsonb_build_array(last_value, is_called) FROM s),
  'objects', (SELECT jsonb_agg(oid) FROM pg_largeobject_metadata),
  'bytes', (SELECT jsonb_agg(data) FROM pg_largeobject),
  'partitions', (SELECT jsonb_agg(inhrelid::regclass) FROM pg_inherits),
  'databases', (SELECT jsonb_agg(datname) FROM pg_database),
  'settings', (SELECT jsonb_agg(setting) FROM pg_file_settings WHERE sourcefile LIKE '%auto.conf'),
  'slots', (SELECT jsonb_agg(slot_name) FROM pg_replication_slots),
  'files', (SELECT jsonb_agg(f) FROM pg_ls_dir('.') f WHERE f LIKE 'done%' OR f LIKE 'file%'))::text AS state`;

describe.each(oldestAndNewest())("PostgreSQL %i", (version) => {
  let fenced: Fenced;
  let admin: pg.Client;
  let owner: ProxyOfTest;
  let loopback: string;
  let runs = 0;

  beforeAll(async () => {
    fenced = await startFenced({
      version,
      settings: { autovacuum: "off", wal_level: "logical" },
      hba: ["host all by_password 127.0.0.1/32 password", "host all all 127.0.0.1/32 trust"],
    });
    admin = await fenced.connectAdmin();
    await admin.query(`
      ALTER ROLE invoice_app CREATEDB REPLICATION;
      GRANT pg_execute_server_program, pg_write_server_files TO invoice_app;
      GRANT ALTER SYSTEM ON PARAMETER work_mem TO invoice_app;
      GRANT CREATE ON SCHEMA public TO invoice_app;
      CREATE ROLE other; GRANT other TO invoice_app;
      CREATE ROLE by_password LOGIN PASSWORD 'secret';
      CREATE EXTENSION dblink;
      CREATE TABLE w (i int);
      CREATE TABLE indexed (i int); CREATE INDEX indexed_i ON indexed (i);
      CREATE TABLE parts (i int) PARTITION BY LIST (i);
      CREATE MATERIALIZED VIEW m AS SELECT * FROM w;
      CREATE SEQUENCE s;
      CREATE PROCEDURE twice() LANGUAGE plpgsql AS $$ BEGIN INSERT INTO w VALUES (1); COMMIT; INSERT INTO w VALUES (2); END $$;
      GRANT ALL ON w TO other, by_password;
      ALTER TABLE w OWNER TO invoice_app; ALTER TABLE indexed OWNER TO invoice_app; ALTER TABLE parts OWNER TO invoice_app;
      ALTER MATERIALIZED VIEW m OWNER TO invoice_app; ALTER SEQUENCE s OWNER TO invoice_app`);
    owner = await startFencedProxy(fenced, 1);
    loopback = `host=127.0.0.1 port=${fenced.postgres.port} dbname=postgres user=by_password password=secret`;
  });
  afterAll(async () => {
    await owner.stop();
    await fenced.stop();
  });

  const state = async (): Promise<string> => (await admin.query(STATE)).rows[0].state;

  /** Whether it changed anything, and its error. */
  async function attempt(change: Change, how: string, isOver: boolean): Promise<{ changed: boolean; error: string }> {
    const { port, jobId } = isOver ? (await serveNewJob(fenced)).proxy : owner;
    const client = await RawClient.open({ port });
    const n = String(++runs);
    const told = (sql: string): string =>
      sql.replaceAll("$N", n).replaceAll("$L", loopback).replaceAll("$D", fenced.postgres.dataDir);
    if (isOver) {
      // What a raise leaves behind, without its ending of our session.
      await admin.query(`BEGIN; REVOKE ALL ON fence.gate_${jobId}_1 FROM PUBLIC;
        UPDATE fence.job SET generation = 2, holder = 'other' WHERE id = ${jobId}; COMMIT`);
    }
    for (const sql of change.given?.split("; ") ?? []) await admin.query(told(sql)).catch(ignoreDuplicate);
    const before = await state();
    for (const sql of change.sql.startsWith("SET ") ? told(change.sql).split("; ") : [told(change.sql)]) {
      const messages = how === "simple" ? [query(sql)] : run(sql);
      const behind = sql.startsWith("SET ") ? [] : (change.messages ?? []);
      await client.exchange(1, ...messages, ...behind, ...(how === "simple" ? [] : [sync()]));
    }
    await client.end();
    const error = client.transcript.find((line) => line.startsWith("E")) ?? "";
    return { changed: (await state()) !== before, error };
  }

  const table = Object.keys(CHANGES).flatMap((what) => [["simple", what] as const, ["extended", what] as const]);
  test.each(table)("INV-3 (%s): %s", async (how, what) => {
    const change = CHANGES[what] as Change;
    expect(await attempt(change, how, true)).toEqual({
      changed: false,
      error: expect.stringMatching(/^E S=FATAL C=LF001 /),
    });
    expect(await attempt(change, how, false)).toEqual({ changed: true, error: "" });
  });

  test("a NOTIFY of a generation that is over reaches nobody", async () => {
    const { jobId, proxy } = await serveNewJob(fenced);
    const client = await RawClient.open({ port: proxy.port });
    const heard: (string | undefined)[] = [];
    admin.on("notification", ({ payload }) => heard.push(payload));
    await admin.query("LISTEN ch");
    await client.exchange(1, query("NOTIFY ch, 'owner'"));
    await admin.query(`REVOKE ALL ON fence.gate_${jobId}_1 FROM PUBLIC`);
    await client.exchange(1, query("NOTIFY ch, 'over'"));
    await admin.query("NOTIFY ch, 'last'");
    expect(heard).toEqual(["owner", "last"]);
    await client.end();
  });

  test("a row lock of a generation that is over is not taken", async () => {
    const { jobId, proxy } = await serveNewJob(fenced);
    const client = await RawClient.open({ port: proxy.port });
    await client.exchange(1, query("BEGIN"));
    await admin.query(`REVOKE ALL ON fence.gate_${jobId}_1 FROM PUBLIC`);
    const answers = await client.exchange(1, query("SELECT * FROM w FOR UPDATE"));
    expect(answers.filter((line) => /^[DE]/.test(line))).toEqual([expect.stringMatching(/^E .*C=(LF001|42501) /)]);
    await client.end();
  });

  /** Made by a run before. */
  function ignoreDuplicate(error: { code?: string }): void {
    if (!["42710", "23505"].includes(error.code ?? "")) throw error;
  }
});
