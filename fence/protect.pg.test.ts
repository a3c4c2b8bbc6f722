import type { Client } from "pg";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { type Fenced, failure, type JobOfTest, startFenced, until } from "../testing/fenced.ts";
import { postgresVersions } from "../testing/postgres.ts";
import { enterLockSql, enterSelectSql } from "./enter.ts";
import { protect, uncovered, unprotect } from "./protect.ts";

describe.each(postgresVersions().found)("protected tables on PostgreSQL %i", (version) => {
  let fenced: Fenced;
  let admin: Client;
  let job: JobOfTest;
  let name: string;
  let jobId: number;
  let t: string;
  let count = 0;

  /** A job with an open gate of generation 1, and a protected table with one row, (1, 0). */
  const newTable = async (columns = "id int PRIMARY KEY, v int", always = false): Promise<void> => {
    name = `test/protect-${++count}`;
    t = `public.t${count}`;
    job = fenced.job(name);
    ({ jobId } = await job.raise(1));
    await admin.query(`CREATE TABLE ${t} (${columns}); INSERT INTO ${t} VALUES (1, 0); GRANT ALL ON ${t} TO PUBLIC`);
    await protect(fenced.admin, name, [t], { always });
  };
  const code = (client: Client, sql: string): Promise<string | undefined> =>
    client.query(sql).then(
      () => undefined,
      async (error) => {
        await client.query("ROLLBACK");
        return error.code;
      },
    );
  const rowCount = async (): Promise<number> => (await admin.query(`SELECT count(*)::int AS n FROM ${t}`)).rows[0].n;
  /** By MERGE, which PostgreSQL has from 15 on. */
  const deleting = (id: number): string =>
    version >= 15
      ? `MERGE INTO ${t} m USING (VALUES (${id})) s(id) ON m.id = s.id WHEN MATCHED THEN DELETE`
      : `DELETE FROM ${t} WHERE id = ${id}`;
  const claim = (generation: number): string => `SET LOCAL fence.generation_${jobId} = ${generation}`;

  beforeAll(async () => {
    fenced = await startFenced({ version, settings: { max_prepared_transactions: "5" } });
    admin = await fenced.connectAdmin();
    await admin.query("CREATE ROLE outsider LOGIN; GRANT USAGE, CREATE ON SCHEMA public TO PUBLIC");
  });
  afterAll(() => fenced?.stop());

  test("INV-3: every kind of write from outside of the gate is refused with LF030, for every role", async () => {
    await newTable();
    await admin.query(
      `CREATE VIEW view_${count} AS SELECT * FROM ${t}; GRANT ALL ON view_${count} TO PUBLIC;
       CREATE FUNCTION writes_${count}() RETURNS int SECURITY DEFINER LANGUAGE sql AS 'INSERT INTO ${t} VALUES (9) RETURNING 1'`,
    );
    const writes = [
      `INSERT INTO ${t} VALUES (2, 0)`,
      `INSERT INTO ${t} VALUES (1, 5) ON CONFLICT (id) DO UPDATE SET v = 5`,
      `INSERT INTO ${t} VALUES (1, 5) ON CONFLICT DO NOTHING`,
      `UPDATE ${t} SET v = 5`,
      `UPDATE ${t} SET v = 5 WHERE false`,
      `DELETE FROM ${t}`,
      `TRUNCATE ${t}`,
      deleting(1),
      `COPY ${t} FROM STDIN`,
      `WITH w AS (INSERT INTO ${t} VALUES (2) RETURNING 1) SELECT * FROM w`,
      `INSERT INTO view_${count} VALUES (2, 0)`,
      `SELECT writes_${count}()`,
      `DO $$BEGIN UPDATE ${t} SET v = 5; END$$`,
      `EXPLAIN ANALYZE DELETE FROM ${t}`,
    ];
    const clients = [admin, await fenced.connect("outsider"), await fenced.connect("invoice_app")];
    for (const client of clients) {
      for (const sql of writes) expect([sql, await code(client, `BEGIN READ WRITE; ${sql}`)]).toEqual([sql, "LF030"]);
    }
    expect((await admin.query(`SELECT * FROM ${t}`)).rows).toEqual([{ id: 1, v: 0 }]);
    const error = await failure(clients[1]!.query(`BEGIN READ WRITE; DELETE FROM ${t}`));
    expect(error.message).toBe(`LF030: DELETE on table ${t} is outside of the fence of FencedJob "${name}"`);
    expect(error.detail).toContain('Role "outsider" has entered no gate');
    expect(error.hint).toContain("fence.enter");
  });

  test("INV-3: inside the gate all of them work, however the transaction entered, and under any role it has taken", async () => {
    await newTable();
    const enters = [enterLockSql(jobId, 1), enterSelectSql(jobId, 1), `SELECT fence.enter('${name}', 1)`, claim(1)];
    for (const [n, enter] of enters.entries()) {
      for (const level of ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]) {
        const app = await fenced.connect(n % 2 === 0 ? "outsider" : "invoice_app");
        await app.query(`BEGIN ISOLATION LEVEL ${level} READ WRITE`);
        await app.query(enter);
        await app.query(`INSERT INTO ${t} VALUES (2, 0); UPDATE ${t} SET v = 1; DELETE FROM ${t} WHERE id = 2`);
        await app.query(`INSERT INTO ${t} VALUES (1, 5) ON CONFLICT (id) DO UPDATE SET v = 5`);
        await app.query(`TRUNCATE ${t}; INSERT INTO ${t} VALUES (1, 0)`);
        await app.query("COMMIT");
        await app.end();
      }
    }
    await admin.query(
      `BEGIN; SELECT fence.enter('${name}', 1); COPY ${t} FROM PROGRAM 'echo 3,0' (FORMAT csv);
       ${deleting(3)}; COMMIT`,
    );
    const admitted = await job.admit(jobId, 1);
    await admin.query("GRANT outsider TO invoice_app");
    await admitted.query(`BEGIN READ WRITE; SET LOCAL ROLE outsider; UPDATE ${t} SET v = 7; COMMIT`);
    await admin.query("REVOKE outsider FROM invoice_app");
    expect(await rowCount()).toBe(1);
  });

  test("INV-3: a stale claim, a stale session and a stale superuser are refused with LF001, and the data stays", async () => {
    await newTable();
    const outside = await fenced.connect("outsider");
    await outside.query(`SET fence.generation_${jobId} = 1`); // for the session: the claim outlives the takeover
    await job.raise(2);
    for (const client of [outside, admin]) {
      for (const level of ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]) {
        const sql = `BEGIN ISOLATION LEVEL ${level} READ WRITE; ${claim(1)}; DELETE FROM ${t}`;
        expect(await code(client, sql)).toBe("LF001");
      }
    }
    await outside.query("BEGIN READ WRITE");
    const error = await failure(outside.query(`DELETE FROM ${t}`));
    await outside.query("ROLLBACK");
    expect(error).toMatchObject({ code: "LF001", detail: expect.stringContaining("to generation 2") });
    expect(await code(outside, `BEGIN READ WRITE; ${claim(3)}; DELETE FROM ${t}`)).toBe("LF001");
    for (const forged of ["x", "", "-1", "99999999999999999999", "1; 2"]) {
      const sql = `BEGIN READ WRITE; SET LOCAL fence.generation_${jobId} = '${forged}'; DELETE FROM ${t}`;
      expect([forged, await code(outside, sql)]).toEqual([forged, "LF030"]);
    }
    expect(await rowCount()).toBe(1);
  });

  test("INV-3: the trigger itself takes the lock, so a raise waits for a write that only claimed, and a rolled-back entry is no entry", async () => {
    await newTable();
    const writer = await fenced.connect("outsider");
    await writer.query(`BEGIN READ WRITE; ${claim(1)}; INSERT INTO ${t} VALUES (2, 0)`);
    const raising = job.raise(2);
    await until(admin, "SELECT EXISTS (SELECT FROM pg_locks WHERE relation = $1::regclass AND NOT granted)", [
      `fence.gate_${jobId}_1`,
    ]);
    await writer.query("COMMIT");
    await raising;
    await writer.query(`BEGIN READ WRITE; SAVEPOINT s; ${enterLockSql(jobId, 2)}; ROLLBACK TO s`);
    expect(await code(writer, `INSERT INTO ${t} VALUES (3, 0)`)).toBe("LF030");
    await writer.query(`BEGIN READ WRITE; SAVEPOINT s; SELECT fence.enter('${name}', 2); ROLLBACK TO s`);
    expect(await code(writer, `INSERT INTO ${t} VALUES (3, 0)`)).toBe("LF030");
    // The write is undone with the lock: nothing of this transaction is left that a raise would have to wait for.
    await writer.query(`BEGIN READ WRITE; SAVEPOINT s; ${claim(2)}; INSERT INTO ${t} VALUES (3, 0); ROLLBACK TO s`);
    await job.raise(3);
    await writer.query("COMMIT");
    expect(await rowCount()).toBe(2);
  });

  test("INV-3: GRANT ON ALL TABLES reopens an old gate, but the row still refuses the older generation", async () => {
    await newTable();
    await job.raise(2);
    await admin.query(`GRANT UPDATE ON fence.gate_${jobId}_1 TO PUBLIC`);
    const outside = await fenced.connect("outsider");
    expect(await code(outside, `BEGIN READ WRITE; ${enterLockSql(jobId, 1)}; DELETE FROM ${t}`)).toBe("LF001");
    expect(await code(outside, `BEGIN READ WRITE; ${claim(1)}; DELETE FROM ${t}`)).toBe("LF001");
  });

  test("an admitted session writes after RESET ALL lost its claim only in transactions that entered", async () => {
    await newTable();
    const owner = await job.admit(jobId, 1);
    await owner.query("RESET ALL");
    const another = await job.admit(jobId, 1);
    await another.query(`BEGIN READ WRITE; ${enterLockSql(jobId, 1)}`); // it is inside, and that is its own affair
    expect(await code(owner, `BEGIN READ WRITE; DELETE FROM ${t}`)).toBe("LF030");
    await owner.query(`BEGIN READ WRITE; ${enterLockSql(jobId, 1)}; DELETE FROM ${t}; COMMIT`);
    // The name of the gate that it holds is read as it is, however the session has names written.
    await owner.query("SET quote_all_identifiers = on");
    await owner.query(`BEGIN READ WRITE; ${enterLockSql(jobId, 1)}; DELETE FROM ${t}; COMMIT`);
    await another.query("COMMIT");
    expect(await rowCount()).toBe(0);
  });

  test("a look-alike gate, and operators or functions of the caller's own, fool nobody", async () => {
    await newTable();
    const liar = await fenced.connect("outsider");
    await liar.query("SET default_transaction_read_only = off");
    await liar.query(
      `CREATE TABLE public.gate_${jobId}_1 (); CREATE TEMP TABLE gate_${jobId}_2 (); CREATE TEMP TABLE job (id int, name text, generation bigint);
       CREATE FUNCTION public.has_table_privilege(text, regclass, text) RETURNS boolean LANGUAGE sql AS 'SELECT true';
       CREATE FUNCTION public.current_setting(text, boolean) RETURNS text LANGUAGE sql AS $$SELECT '1'$$`,
    );
    await liar.query("SET search_path = public, pg_temp, pg_catalog");
    for (const gate of [`public.gate_${jobId}_1`, `pg_temp.gate_${jobId}_2`]) {
      expect(await code(liar, `BEGIN; LOCK TABLE ${gate} IN ROW SHARE MODE; DELETE FROM ${t}`)).toMatch(/LF030|LF001/);
    }
    expect(await code(liar, `BEGIN; LOCK TABLE fence.gate_${jobId}_1 IN ACCESS SHARE MODE; DELETE FROM ${t}`)).toBe(
      "LF030",
    );
    await liar.query(
      `DROP FUNCTION public.has_table_privilege(text, regclass, text), public.current_setting(text, boolean); DROP TABLE public.gate_${jobId}_1`,
    );
    expect(await rowCount()).toBe(1);
  });

  test("the gate of another job opens nothing, and a transaction may be inside of two", async () => {
    await newTable();
    const [firstTable, firstName] = [t, name];
    await newTable();
    const writer = await fenced.connect("outsider");
    await writer.query(`BEGIN READ WRITE; SELECT fence.enter('${name}', 1); DELETE FROM ${t}`);
    expect(await code(writer, `DELETE FROM ${firstTable}`)).toBe("LF030");
    await writer.query(`BEGIN READ WRITE; SELECT fence.enter('${name}', 1), fence.enter('${firstName}', 1)`);
    await writer.query(`DELETE FROM ${firstTable}; DELETE FROM ${t}; COMMIT`);
  });

  test("a foreign key's cascade from an unprotected table is refused too", async () => {
    await newTable();
    await admin.query(
      `CREATE TABLE parent_${count} (id int PRIMARY KEY); INSERT INTO parent_${count} VALUES (1);
       ALTER TABLE ${t} ADD FOREIGN KEY (id) REFERENCES parent_${count} ON DELETE CASCADE ON UPDATE CASCADE; GRANT ALL ON parent_${count} TO PUBLIC`,
    );
    for (const client of [admin, await fenced.connect("outsider")]) {
      expect(await code(client, `BEGIN READ WRITE; DELETE FROM parent_${count}`)).toBe("LF030");
      expect(await code(client, `BEGIN READ WRITE; UPDATE parent_${count} SET id = 2`)).toBe("LF030");
      expect(await code(client, `BEGIN READ WRITE; TRUNCATE parent_${count} CASCADE`)).toMatch(/LF030|42501/);
    }
    expect(await rowCount()).toBe(1);
  });

  test("a prepared transaction keeps the lock: the raise names it instead of overtaking it", async () => {
    await newTable();
    const writer = await fenced.connect("outsider");
    await writer.query(`BEGIN READ WRITE; SELECT fence.enter('${name}', 1); DELETE FROM ${t}`);
    await writer.query(`PREPARE TRANSACTION 'p${count}'`);
    expect(await failure(job.raise(2, { drainMs: 0 }))).toMatchObject({
      code: "LF004",
      detail: expect.stringContaining(`p${count}`),
    });
    await admin.query(`COMMIT PREPARED 'p${count}'`);
    await job.raise(2);
  });

  test("INV-3: settings that make plans parallel change nothing: the one that writes is the leader", async () => {
    await newTable();
    await admin.query(`CREATE TABLE big_${count} AS SELECT g AS id FROM generate_series(2, 20000) g`);
    await admin.query(`GRANT ALL ON big_${count} TO PUBLIC; ANALYZE big_${count}`);
    const writer = await fenced.connect("outsider");
    await writer.query(
      "SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0",
    );
    const insert = `INSERT INTO ${t} SELECT max(id), 0 FROM big_${count}`;
    expect(await code(writer, `BEGIN READ WRITE; ${insert}`)).toBe("LF030");
    await writer.query(`BEGIN READ WRITE; SELECT fence.enter('${name}', 1); ${insert}; COMMIT`);
    expect(await rowCount()).toBe(2);
  });

  test("session_replication_role = replica passes by the trigger unless it was protected with ALWAYS", async () => {
    await newTable();
    const replica = "BEGIN; SET LOCAL session_replication_role = replica";
    expect(await code(admin, `${replica}; UPDATE ${t} SET v = 1; ROLLBACK`)).toBeUndefined();
    await protect(fenced.admin, name, [t], { always: true });
    expect(await code(admin, `${replica}; UPDATE ${t} SET v = 1; ROLLBACK`)).toBe("LF030");
    await protect(fenced.admin, name, [t]);
    expect(await code(admin, `${replica}; UPDATE ${t} SET v = 1; ROLLBACK`)).toBeUndefined();
    const { rows } = await admin.query("SELECT tgname FROM pg_trigger WHERE tgrelid = $1::regclass", [t]);
    expect(rows).toEqual([{ tgname: "fence_guard" }]);
  });

  test("protecting waits for the writers that are at work, twice is once, and unprotecting lets everybody write", async () => {
    await newTable();
    expect(await protect(fenced.admin, name, [t])).toEqual([t]);
    expect(await unprotect(fenced.admin, [t])).toEqual([t]);
    expect(await unprotect(fenced.admin, [t])).toEqual([]);
    const writer = await fenced.connect("outsider");
    await writer.query(`BEGIN READ WRITE; UPDATE ${t} SET v = 3`);
    const protecting = protect(fenced.admin, name, [t]);
    await until(
      admin,
      "SELECT EXISTS (SELECT FROM pg_locks WHERE relation = $1::regclass AND mode = 'ShareRowExclusiveLock' AND NOT granted)",
      [t],
    );
    await writer.query("COMMIT");
    await protecting;
    expect(await code(writer, `BEGIN READ WRITE; UPDATE ${t} SET v = 4`)).toBe("LF030");
  });

  test("what cannot be protected is named, and nothing is changed", async () => {
    await newTable();
    await admin.query(
      `CREATE VIEW v_${count} AS SELECT 1 AS a; CREATE TABLE top_${count} (id int) PARTITION BY LIST (id);
       CREATE TABLE part_${count} PARTITION OF top_${count} FOR VALUES IN (1)`,
    );
    const refused = async (job: string, table: string): Promise<string> => {
      const error = await failure(protect(fenced.admin, job, [table]));
      expect(error.code).toBe("LF031");
      return `${error.message} ${error.detail} ${error.hint}`;
    };
    expect(await refused(name, `v_${count}`)).toContain("not an ordinary");
    expect(await refused(name, "fence.claim")).toContain("the fence's own");
    expect(await refused(name, `part_${count}`)).toContain(`Protect public.top_${count}`);
    expect(await refused("another/job", t)).toContain(`bound to FencedJob "${name}" already`);
    expect(await refused(name, "no.such_table")).toContain("there is no table no.such_table");
    const notMine = await failure(protect(fenced.address, name, [t]));
    expect(notMine).toMatchObject({ code: "LF012", hint: expect.stringContaining("fence_admin") });
    expect(await uncovered(fenced.admin)).toEqual([]);
  });
});
