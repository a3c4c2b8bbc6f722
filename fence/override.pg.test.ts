import type { Client } from "pg";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { type Fenced, failure, startFenced } from "../testing/fenced.ts";
import { postgresVersions } from "../testing/postgres.ts";
import { protect } from "./protect.ts";

describe.each(postgresVersions().found)("an administrator's override on PostgreSQL %i", (version) => {
  let fenced: Fenced;
  let admin: Client;
  const log = async (): Promise<unknown[]> =>
    (await admin.query("SELECT username, reason FROM fence.override_log ORDER BY id")).rows;
  const code = async (client: Client, sql: string): Promise<string | undefined> =>
    client.query(sql).then(
      () => undefined,
      async (error) => {
        await client.query("ROLLBACK");
        return error.code;
      },
    );

  beforeAll(async () => {
    fenced = await startFenced({ version });
    admin = await fenced.connectAdmin();
    await fenced.raise(1);
    await admin.query(
      `CREATE ROLE operator LOGIN; GRANT fence_admin TO operator; CREATE ROLE clerk LOGIN;
       CREATE TABLE ledger (v int); GRANT ALL ON ledger TO PUBLIC`,
    );
    await protect(fenced.admin, "billing/invoice-run", ["ledger"]);
  });
  afterAll(() => fenced?.stop());

  test("it holds for one transaction, and its record commits with the writes or not at all", async () => {
    const operator = await fenced.connect("operator");
    await operator.query(
      "BEGIN READ WRITE; SELECT fence.override('ticket 7: wrong amount'); INSERT INTO ledger VALUES (1); COMMIT",
    );
    expect(await log()).toEqual([{ username: "operator", reason: "ticket 7: wrong amount" }]);
    expect(await code(operator, "BEGIN READ WRITE; INSERT INTO ledger VALUES (2)")).toBe("LF030");
    await operator.query("BEGIN READ WRITE; SELECT fence.override('no'); INSERT INTO ledger VALUES (3); ROLLBACK");
    expect(
      await code(
        operator,
        "BEGIN READ WRITE; SAVEPOINT s; SELECT fence.override('no'); ROLLBACK TO s; DELETE FROM ledger",
      ),
    ).toBe("LF030");
    // Another transaction's record is worth nothing, also while both are open.
    const other = await fenced.connect("operator");
    await operator.query("BEGIN READ WRITE; SELECT fence.override('mine')");
    expect(await code(other, "BEGIN READ WRITE; DELETE FROM ledger")).toBe("LF030");
    await operator.query("ROLLBACK");
    expect(await log()).toHaveLength(1);
    expect((await admin.query("SELECT * FROM ledger")).rows).toEqual([{ v: 1 }]);
    const { rows } = await admin.query(
      "SELECT txid = (SELECT xmin::text::xid8 FROM ledger) AS same FROM fence.override_log",
    );
    expect(rows).toEqual([{ same: true }]);
  });

  test("a superuser needs it as well; at every isolation level it counts for what follows", async () => {
    expect(await code(admin, "BEGIN; DELETE FROM ledger")).toBe("LF030");
    for (const level of ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]) {
      await admin.query(
        `BEGIN ISOLATION LEVEL ${level}; SELECT fence.override('test'); UPDATE ledger SET v = 1; COMMIT`,
      );
    }
  });

  test("the role of an application and everybody else are refused, also through somebody else's function or role", async () => {
    const application = await fenced.connect("invoice_app");
    const call = "BEGIN READ WRITE; SELECT fence.override('I may')";
    expect(await code(application, call)).toBe("42501");
    expect(await code(await fenced.connect("clerk"), call)).toBe("42501");
    await admin.query(
      `CREATE FUNCTION lend() RETURNS void SECURITY DEFINER LANGUAGE sql AS $$SELECT fence.override('lent')$$; GRANT fence_admin TO invoice_app`,
    );
    const error = await failure(application.query(call));
    await application.query("ROLLBACK");
    expect(error).toMatchObject({ code: "LF012", message: 'LF012: role "invoice_app" may not override the fence' });
    expect(await code(application, "BEGIN READ WRITE; SELECT lend()")).toBe("LF012");
    expect(await code(await fenced.connect("clerk"), "BEGIN READ WRITE; SELECT lend()")).toBe("LF012");
    await admin.query("REVOKE fence_admin FROM invoice_app");
  });

  test("a record cannot be written by hand, and an empty reason is none", async () => {
    const operator = await fenced.connect("operator");
    const forged =
      "INSERT INTO fence.override_log (incarnation, txid, username, reason) VALUES (fence.incarnation(), pg_current_xact_id(), 'x', 'x')";
    expect(await code(operator, `BEGIN READ WRITE; ${forged}`)).toBe("42501");
    expect(await code(operator, "BEGIN READ WRITE; DELETE FROM fence.override_log")).toBe("42501");
    expect(await code(operator, "BEGIN READ WRITE; SELECT fence.override('  ')")).toBe("22023");
  });

  test("a record of another history with the same transaction number allows nothing", async () => {
    await admin.query(
      "BEGIN; INSERT INTO fence.override_log (incarnation, txid, username, reason) VALUES ('another', pg_current_xact_id(), 'x', 'x')",
    );
    expect(await code(admin, "DELETE FROM ledger")).toBe("LF030");
  });
});
