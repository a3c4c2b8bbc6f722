/** Protected tables as their users meet them: through the sidecar's proxy, directly, and by `fencedjob db`. */
import { execFile } from "node:child_process";
import { join } from "node:path";
import type { Client } from "pg";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { type Fenced, failure, startFenced } from "../testing/fenced.ts";
import { postgresVersions } from "../testing/postgres.ts";
import { type ProxyOfTest, startFencedProxy } from "../testing/proxy.ts";

describe.each(postgresVersions().found.filter((version) => version === 15 || version === 18))(
  "protected tables from outside on PostgreSQL %i",
  (version) => {
    let fenced: Fenced;
    let admin: Client;
    let proxy: ProxyOfTest;

    /** Runs `fencedjob db …` as an administrator; what it says, and its exit code. */
    const db = (...args: string[]): Promise<{ code: number; said: string }> =>
      new Promise((resolve) => {
        const env = { ...process.env, DATABASE_URL: fenced.postgres.url() };
        const program = join(import.meta.dirname, "fencedjob.ts");
        execFile(process.execPath, [program, "db", ...args], { env }, (error, stdout, stderr) => {
          resolve({ code: error ? Number(error.code) : 0, said: stdout + stderr });
        });
      });

    beforeAll(async () => {
      fenced = await startFenced({ version });
      admin = await fenced.connectAdmin();
      proxy = await startFencedProxy(fenced, 1);
      // Each row says whether it was written under the lock of a gate.
      await admin.query(
        `CREATE FUNCTION under_gate() RETURNS boolean LANGUAGE sql AS $$SELECT EXISTS (SELECT FROM pg_locks
           WHERE pid = pg_backend_pid() AND mode = 'RowShareLock' AND relation = 'fence.gate_1_1'::regclass)$$;
         CREATE TABLE entry (v int, fenced boolean DEFAULT under_gate())`,
      );
      await admin.query("GRANT ALL ON entry TO PUBLIC");
    });
    afterAll(async () => {
      await proxy?.stop();
      await fenced?.stop();
    });

    test("db protect, uncovered and unprotect say what they did and what is missing", async () => {
      const job = ["--job", "billing/invoice-run"];
      expect(await db("protect", "public.none", ...job)).toMatchObject({
        code: 1,
        said: expect.stringMatching(
          /^LF031: there is no table public\.none in database "postgres"\nDETAIL: .*\nHINT: /,
        ),
      });
      expect(await db("protect", "entry", ...job, "--always")).toEqual({
        code: 0,
        said: "public.entry: only transactions inside the fence of billing/invoice-run write to it.\n",
      });
      expect(await db("uncovered")).toMatchObject({ code: 0, said: expect.stringContaining("is covered") });
      await admin.query("ALTER TABLE entry DISABLE TRIGGER fence_guard");
      expect(await db("uncovered")).toEqual({
        code: 1,
        said: "public.entry (billing/invoice-run): its trigger is disabled\n",
      });
      expect(await db("unprotect", "entry")).toEqual({ code: 0, said: "public.entry: not protected any more.\n" });
      expect(await db("unprotect", "entry")).toMatchObject({ code: 0, said: expect.stringContaining("None") });
      expect(await db("protect", "entry", ...job)).toMatchObject({ code: 0 });
    });

    test("INV-3: through the proxy everything writes as before, each row under the gate's lock, also after RESET ALL", async () => {
      const client = await proxy.connect();
      for (const reset of ["", "RESET ALL", "DISCARD ALL"]) {
        await client.query(reset);
        await client.query("INSERT INTO entry VALUES (1)");
        await client.query("INSERT INTO entry VALUES ($1)", [2]);
        await client.query({ name: `p${reset.length}`, text: "INSERT INTO entry VALUES ($1)", values: [3] });
        await client.query(
          "BEGIN ISOLATION LEVEL SERIALIZABLE; INSERT INTO entry VALUES (4); COMMIT AND CHAIN; INSERT INTO entry VALUES (5); COMMIT",
        );
        await client.query(
          "BEGIN; SAVEPOINT s; INSERT INTO entry VALUES (0); ROLLBACK TO s; INSERT INTO entry VALUES (6); COMMIT",
        );
        await client.query(
          "MERGE INTO entry USING (VALUES (7)) n(v) ON false WHEN NOT MATCHED THEN INSERT VALUES (n.v)",
        );
      }
      const { rows } = await admin.query(
        "SELECT v, count(*)::int AS n, bool_and(fenced) AS fenced FROM entry GROUP BY v ORDER BY v",
      );
      expect(rows).toEqual([1, 2, 3, 4, 5, 6, 7].map((v) => ({ v, n: 3, fenced: true })));
    });

    test("INV-3: a procedure that gives up the bracket's lock and writes on is fenced by the table itself", async () => {
      const client = await proxy.connect();
      const unlock =
        "DO $$ BEGIN PERFORM pg_advisory_unlock_all(); COMMIT; SET TRANSACTION READ WRITE; INSERT INTO entry VALUES (8); END $$";
      await client.query(unlock);
      expect((await admin.query("SELECT fenced FROM entry WHERE v = 8")).rows).toEqual([{ fenced: true }]);
    });

    test("INV-3: a second connection string is refused at once, and a session of the old generation after the takeover", async () => {
      const client = await proxy.connect();
      await client.query("BEGIN; INSERT INTO entry VALUES (9)");
      const direct = await fenced.connect();
      await direct.query("SET default_transaction_read_only = off");
      expect(await failure(direct.query("INSERT INTO entry VALUES (9)"))).toMatchObject({ code: "LF030" });
      await fenced.raise(2);
      expect(await failure(client.query("COMMIT"))).toMatchObject({ code: "LF001" });
      await direct.query(`SET fence.generation_1 = 1`);
      expect(await failure(direct.query("INSERT INTO entry VALUES (9)"))).toMatchObject({ code: "LF001" });
      expect((await admin.query("SELECT FROM entry WHERE v = 9")).rowCount).toBe(0);
    });
  },
);
