/** What clients are told when the proxy ends: of what it knows the most important, and nothing that may be untrue (INV-10). */
import type pg from "pg";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { type Failure, type Fenced, failure, startFenced, until } from "../../testing/fenced.ts";
import { oldestAndNewest } from "../../testing/postgres.ts";
import { serveNewJob } from "../../testing/proxy.ts";

describe.each(oldestAndNewest())("PostgreSQL %i", (version) => {
  let fenced: Fenced;
  let admin: pg.Client;

  beforeAll(async () => {
    fenced = await startFenced({ version });
    admin = await fenced.connectAdmin();
    await admin.query(`
      CREATE TABLE w (i int);
      CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NULL; END $$;
      CREATE CONSTRAINT TRIGGER slowly AFTER INSERT ON w DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION slowly();
      GRANT ALL ON w TO invoice_app`);
  });
  afterAll(() => fenced.stop());

  const INSERT = "INSERT INTO w VALUES (1)";
  test.each<[what: string, before: string[], committing: string | pg.QueryConfig]>([
    ["a COMMIT", ["BEGIN", INSERT], "COMMIT"],
    ["a COMMIT in the extended protocol", ["BEGIN", INSERT], { name: "c", text: "COMMIT" }],
    ["a write outside of a block", [], INSERT],
    ["such a write in the extended protocol", [], { text: "INSERT INTO w VALUES ($1)", values: [1] }],
  ])("INV-10: the outcome of %s that is under way is unknown", async (_what, before, committing) => {
    await admin.query("TRUNCATE w");
    const { proxy } = await serveNewJob(fenced);
    const client = await proxy.connect();
    // It is under way for as long as this is held.
    await admin.query("SELECT pg_advisory_lock(1)");
    for (const sql of before) await client.query(sql);
    const told = failure(client.query(committing));
    await until(admin, "SELECT count(*) > 0 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted");
    await proxy.proxy.close();
    expect(await told).toMatchObject({ code: "08007", severity: "FATAL" });
    await admin.query("SELECT pg_advisory_unlock(1)");
    // And so it is: PostgreSQL goes on with it, though nobody is there any more.
    await until(admin, "SELECT count(*) = 1 FROM w");
  });

  test("a block that waits for its client is over, and said to be", async () => {
    await admin.query("TRUNCATE w");
    const { proxy } = await serveNewJob(fenced);
    const client = await proxy.connect();
    const told = new Promise<Failure>((resolve) => client.once("error", (error) => resolve(error as Failure)));
    await client.query("BEGIN");
    await client.query(INSERT);
    await proxy.proxy.close();
    expect(await told).toMatchObject({ code: "57P01", hint: "An open transaction was rolled back." });
    await until(admin, "SELECT count(*) = 0 FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'");
    expect((await admin.query("SELECT FROM w")).rowCount).toBe(0);
  });
});
