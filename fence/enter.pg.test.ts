import { readFileSync } from "node:fs";
import type { Client } from "pg";
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { type Fenced, failure, type JobOfTest, startFenced, until } from "../testing/fenced.ts";
import { postgresVersions } from "../testing/postgres.ts";
import { protect } from "./protect.ts";

const WAITS = "SELECT EXISTS (SELECT FROM pg_locks WHERE relation = $1::regclass AND NOT granted)";
const LEVELS = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] as const;

describe.each(postgresVersions().found)("fence.enter on PostgreSQL %i", (version) => {
  let fenced: Fenced;
  let admin: Client;
  let worker: Client;
  let job: JobOfTest;
  let name: string;
  let jobId: number;
  let count = 0;
  const begin = (level: string): string => `BEGIN ISOLATION LEVEL ${level} READ WRITE`;
  const refused = async (sql: string): Promise<string> => {
    const { code } = await failure(worker.query(sql));
    await worker.query("ROLLBACK");
    return code;
  };

  beforeAll(async () => {
    fenced = await startFenced({ version });
    admin = await fenced.connectAdmin();
    await admin.query(
      "CREATE TABLE invoice (id int PRIMARY KEY, sent_by int); INSERT INTO invoice VALUES (1, 0); GRANT ALL ON invoice TO PUBLIC; CREATE ROLE plain LOGIN",
    );
    worker = await fenced.connect("plain");
  });
  afterAll(() => fenced?.stop());
  beforeEach(async () => {
    name = `test/enter-${++count}`;
    job = fenced.job(name);
    ({ jobId } = await job.raise(1));
  });

  test("the page's example works as it stands, and is refused from the next takeover on", async () => {
    const page = readFileSync(new URL("../docs/enter.md", import.meta.url), "utf8");
    const [raise, transaction, ...more] = [...page.matchAll(/^```sql\n(.*?)^```/gms)].map(([, sql]) => sql!);
    expect(more).toEqual([]);
    const application = await fenced.connect();
    await application.query("SET default_transaction_read_only = off");
    // All by the one that the page names: another issuer's would be refused (LF005).
    const issuer = "my scheduler";
    await fenced.raise(6, { issuer });
    await application.query(raise!);
    await application.query(transaction!);
    expect((await admin.query("SELECT sent_by FROM invoice WHERE id = 1")).rows).toEqual([{ sent_by: 7 }]);
    expect(await fenced.row()).toMatchObject({ generation: 7, holderName: "worker on host a" });
    await fenced.raise(8, { issuer });
    const error = await failure(application.query(transaction!));
    expect(error).toMatchObject({ code: "LF001" });
    expect(error.message).toBe('LF001: generation 7 of FencedJob "billing/invoice-run" is over, or was never raised');
    expect(error.detail).toMatch(/^Pod invoice-run-8 raised the fence to generation 8 at \d\d:\d\d:\d\dZ\.$/);
  });

  test.each(LEVELS)(
    "INV-3: it is held to COMMIT, and refused after, before and during a wait, at %s",
    async (level) => {
      await worker.query(`${begin(level)}; SELECT fence.enter('${name}', 1)`);
      const raising = job.raise(2);
      await until(admin, WAITS, [`fence.gate_${jobId}_1`]);
      await worker.query("COMMIT");
      await raising;

      const raiser = await fenced.connectAdmin();
      await raiser.query("BEGIN");
      await raiser.query("SELECT fence.raise($1, 3, 'uid-3', 'invoice-run-3', 'n', 'test')", [name]);
      await worker.query(begin(level));
      const waiting = failure(worker.query(`SELECT fence.enter('${name}', 2)`));
      await until(admin, WAITS, [`fence.gate_${jobId}_2`]);
      await raiser.query("COMMIT");
      expect(await waiting).toMatchObject({ code: "LF001" });
      await worker.query("ROLLBACK");
      expect(await refused(`${begin(level)}; SELECT fence.enter('${name}', 2)`)).toBe("LF001");
      await worker.query(`${begin(level)}; SELECT fence.enter('${name}', 3); COMMIT`);
      await job.raise(4);
      await job.raise(5); // and a gate that is swept refuses too
      expect((await admin.query("SELECT to_regclass($1) AS gate", [`fence.gate_${jobId}_1`])).rows).toEqual([
        { gate: null },
      ]);
      expect(await refused(`${begin(level)}; SELECT fence.enter('${name}', 1)`)).toBe("LF001");
    },
  );

  test("a superuser, whom a closed gate would let pass, is refused as well", async () => {
    await job.raise(2);
    await admin.query("BEGIN");
    expect(await failure(admin.query(`SELECT fence.enter('${name}', 1)`))).toMatchObject({ code: "LF001" });
    await admin.query("ROLLBACK");
  });

  test.each(["REPEATABLE READ", "SERIALIZABLE"])(
    "INV-4: with a snapshot older than the own takeover it refuses (LF021), and so does a protected table, at %s",
    async (level) => {
      await protect(fenced.admin, name, ["invoice"]);
      const look = `${begin(level)}; SELECT count(*) FROM invoice`;
      await worker.query(look);
      await job.raise(2);
      expect(await refused(`SELECT fence.enter('${name}', 2)`)).toBe("LF021");
      await worker.query(look);
      await job.raise(3);
      expect(await refused(`LOCK TABLE fence.gate_${jobId}_3 IN ROW SHARE MODE; UPDATE invoice SET sent_by = 3`)).toBe(
        "LF021",
      );
      // Late, but the snapshot is younger than the takeover: nothing is missed.
      await worker.query(`${look}; SELECT fence.enter('${name}', 3); UPDATE invoice SET sent_by = 3; COMMIT`);
      // At READ COMMITTED each statement looks anew.
      await worker.query(`${begin("READ COMMITTED")}; SELECT count(*) FROM invoice`);
      await job.raise(4);
      await worker.query(`SELECT fence.enter('${name}', 4); UPDATE invoice SET sent_by = 4; COMMIT`);
      await admin.query("SELECT fence.unprotect('{invoice}')");
    },
  );

  test("a name or a number that was never raised, another history, and what is no generation, are refused", async () => {
    const enter = (...args: [string, string]): Promise<string> =>
      refused(`BEGIN READ WRITE; SELECT fence.enter(${args.join(", ")})`);
    expect(await enter("'no/such-job'", "1")).toBe("LF001");
    expect(await enter("NULL", "1")).toBe("LF001");
    expect(await enter(`'${name}'`, "2")).toBe("LF001");
    for (const bad of ["NULL", "0", "-1", "9007199254740992"]) expect(await enter(`'${name}'`, bad)).toBe("22023");
    await admin.query("UPDATE fence.job SET incarnation = 'another/history' WHERE id = $1", [jobId]);
    expect(await enter(`'${name}'`, "1")).toBe("LF003");
  });

  test("nobody gets at the inner functions, and entering writes nothing", async () => {
    expect(await refused(`BEGIN; SELECT fence.enter_gate(${jobId}, 1)`)).toBe("42501");
    expect(await refused("BEGIN; SELECT fence.job_id('made/up')")).toBe("42501");
    await worker.query(`BEGIN; SELECT fence.enter('${name}', 1)`);
    const { rows } = await worker.query("SELECT pg_current_xact_id_if_assigned() AS xid");
    expect(rows).toEqual([{ xid: null }]);
    await worker.query("COMMIT");
    expect((await worker.query(`SELECT current_setting('fence.generation_${jobId}', true) AS claim`)).rows).toEqual([
      { claim: "" },
    ]);
  });
});
