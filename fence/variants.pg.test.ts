/** docs/almost-right.md: each variant fails as the page says. A test here that no longer "fails" makes the page wrong. */
import { readFileSync } from "node:fs";
import type { Client } from "pg";
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { type Fenced, failure, type JobOfTest, startFenced, until } from "../testing/fenced.ts";
import type { PostgresVersion } from "../testing/postgres.ts";
import { postgresVersions } from "../testing/postgres.ts";
import { enterLockSql } from "./enter.ts";

const page = readFileSync(new URL("../docs/almost-right.md", import.meta.url), "utf8");
const sections = [...page.matchAll(/^## (.*)$/gm)].map(([, title]) => title!);
const shown = new Set<string>();
const WRITE = "UPDATE invoice SET sent_by = 7 WHERE id = 1";

describe.each(postgresVersions().found.filter((version) => version === 15 || version === 18))(
  "almost right on PostgreSQL %i",
  (version: PostgresVersion) => {
    let fenced: Fenced;
    let admin: Client;
    let old: Client;
    let job: JobOfTest;
    let name: string;
    let jobId: number;
    let count = 0;

    beforeAll(async () => {
      fenced = await startFenced({ version });
      admin = await fenced.connectAdmin();
      await admin.query(
        `CREATE TABLE invoice (id int PRIMARY KEY, sent_by int); INSERT INTO invoice VALUES (1, 0);
         CREATE TABLE my_fence (job text PRIMARY KEY, generation int); INSERT INTO my_fence VALUES ('mine', 0);
         GRANT ALL ON invoice, my_fence TO PUBLIC`,
      );
    });
    afterAll(() => fenced?.stop());

    /** An owner of generation 7, who does not go through the proxy. */
    beforeEach(async () => {
      name = `test/variant-${++count}`;
      job = fenced.job(name);
      ({ jobId } = await job.raise(7));
      await admin.query("UPDATE invoice SET sent_by = 0; UPDATE my_fence SET generation = 7");
      old = await fenced.connect();
      await old.query("SET default_transaction_read_only = off");
    });

    /** Generation 8 takes over and looks; then the rest of the old owner's transaction must not, and does, commit. */
    const staleCommit = async (takeOver: () => Promise<unknown>, rest: () => Promise<unknown>): Promise<void> => {
      await takeOver();
      const seen = await admin.query("SELECT sent_by FROM invoice");
      await rest();
      const after = await admin.query("SELECT sent_by FROM invoice");
      expect([seen.rows, after.rows]).toEqual([[{ sent_by: 0 }], [{ sent_by: 7 }]]);
    };
    const raise = () => job.raise(8, { drainMs: 0 });
    const myRaise = () => admin.query("UPDATE my_fence SET generation = 8");
    const variant = (title: string, run: () => Promise<void>): void => {
      shown.add(title);
      test(title, run);
    };

    variant("The application compares", async () => {
      const { rows } = await old.query("SELECT generation::int FROM fence.job WHERE name = $1", [name]);
      expect(rows).toEqual([{ generation: 7 }]);
      await staleCommit(raise, () => old.query(WRITE));
    });

    variant("A predicate in the write", async () => {
      await old.query("BEGIN");
      await old.query(`${WRITE} AND (SELECT generation FROM fence.job WHERE name = '${name}') = 7`);
      await staleCommit(raise, () => old.query("COMMIT"));
    });

    variant("Entering in a transaction of its own", async () => {
      await old.query(`SELECT fence.enter('${name}', 7)`);
      await staleCommit(raise, () => old.query(WRITE));
    });

    variant("Entering in a savepoint that is rolled back", async () => {
      await old.query(`BEGIN; SAVEPOINT s; SELECT fence.enter('${name}', 7); ROLLBACK TO s; ${WRITE}`);
      await staleCommit(raise, () => old.query("COMMIT"));
    });

    variant("The fence in another database", async () => {
      await admin.query("CREATE DATABASE data");
      const data = await fenced.connectAdmin("data");
      await data.query("CREATE TABLE invoice (sent_by int)");
      const here = await job.admit(jobId, 7);
      await here.query(`BEGIN READ WRITE; ${enterLockSql(jobId, 7)}`);
      await data.query("BEGIN; INSERT INTO invoice VALUES (7)");
      expect(await raise()).toMatchObject({ sessionsEnded: 1 });
      await data.query("COMMIT");
      expect((await data.query("SELECT * FROM invoice")).rows).toEqual([{ sent_by: 7 }]);
    });

    variant("FOR KEY SHARE", async () => {
      await old.query("BEGIN; SELECT generation FROM my_fence WHERE job = 'mine' FOR KEY SHARE");
      await old.query(WRITE);
      await staleCommit(myRaise, () => old.query("COMMIT"));
      await old.query("BEGIN; SELECT generation FROM my_fence WHERE job = 'mine' FOR SHARE");
      await admin.query("SET lock_timeout = '100ms'");
      expect(await failure(myRaise())).toMatchObject({ code: "55P03" }); // this one does wait
      await admin.query("RESET lock_timeout");
      await old.query("ROLLBACK");
    });

    variant("An advisory lock and a look at the row, at REPEATABLE READ", async () => {
      const raiser = await fenced.connectAdmin();
      await raiser.query("BEGIN; SELECT pg_advisory_xact_lock(42)");
      await old.query("BEGIN ISOLATION LEVEL REPEATABLE READ");
      const locked = old.query("SELECT pg_advisory_xact_lock_shared(42)");
      await until(admin, "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted)");
      await staleCommit(
        () => raiser.query("UPDATE my_fence SET generation = 8; COMMIT"),
        async () => {
          await locked;
          expect((await old.query("SELECT generation FROM my_fence")).rows).toEqual([{ generation: 7 }]);
          await old.query(`${WRITE}; COMMIT`);
        },
      );
    });

    variant("SERIALIZABLE will see it", async () => {
      await old.query("BEGIN ISOLATION LEVEL SERIALIZABLE");
      expect((await old.query("SELECT generation FROM my_fence")).rows).toEqual([{ generation: 7 }]);
      await old.query(WRITE);
      await staleCommit(myRaise, () => old.query("COMMIT"));
    });

    variant("Locking the gate late, at REPEATABLE READ", async () => {
      const next = await fenced.connect();
      await next.query("BEGIN ISOLATION LEVEL REPEATABLE READ READ WRITE; SELECT count(*) FROM invoice");
      await old.query(`BEGIN; SELECT fence.enter('${name}', 7); INSERT INTO invoice VALUES (2, 7); COMMIT`);
      await raise();
      await next.query(enterLockSql(jobId, 8));
      expect((await next.query("SELECT count(*)::int AS n FROM invoice")).rows).toEqual([{ n: 1 }]); // 2 by now
      await next.query("DELETE FROM invoice WHERE id = 2; COMMIT");
      expect((await admin.query("DELETE FROM invoice WHERE id = 2")).rowCount).toBe(1); // it did not see it
    });

    variant("Dropping the gate instead of closing it", async () => {
      const backup = await fenced.connect();
      const gate = `fence.gate_${jobId}_7`;
      await backup.query(`BEGIN READ ONLY; LOCK TABLE ${gate} IN ACCESS SHARE MODE`);
      await admin.query("SET lock_timeout = '100ms'");
      expect(await failure(admin.query(`DROP TABLE ${gate}`))).toMatchObject({ code: "55P03" });
      await admin.query("RESET lock_timeout");
      await raise();
      await backup.query("COMMIT");
    });
  },
);

test("every section of the page is shown by a test, and the other way round", () => {
  expect([...shown]).toEqual(sections);
});
