/** Every option with which a transaction can begin means the same through the proxy, whose fence comes before its first statement. */
import type pg from "pg";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { type Fenced, startFenced } from "../../testing/fenced.ts";
import { oldestAndNewest } from "../../testing/postgres.ts";
import { type ProxyOfTest, startFencedProxy } from "../../testing/proxy.ts";
import { RawClient } from "../../testing/rawclient.ts";
import { group } from "../../testing/requests.ts";
import { query } from "./messages.ts";

const LEVELS = ["READ UNCOMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];
const OPTIONS = ["", ...LEVELS.map((level) => `ISOLATION LEVEL ${level}`)].flatMap((level) =>
  ["", "READ WRITE", "READ ONLY"].flatMap((access) =>
    ["", "DEFERRABLE", "NOT DEFERRABLE"].map((deferrable) => [level, access, deferrable].filter(Boolean)),
  ),
);
const HEADS = ["BEGIN", "begin work", "BEGIN TRANSACTION", "START TRANSACTION"];
/** In any order, with and without commas: PostgreSQL takes all of them. */
const written = (options: readonly string[], n: number): string =>
  (n % 2 === 0 ? options : options.toReversed()).join(n % 3 === 0 ? ", " : " ");

const INSIDE = [
  "SHOW transaction_isolation",
  "SELECT current_setting('transaction_read_only'), current_setting('transaction_deferrable')",
  "INSERT INTO w VALUES (1)",
  "COMMIT",
];

describe.each(oldestAndNewest())("PostgreSQL %i", (version) => {
  let fenced: Fenced;
  let admin: pg.Client;
  let proxied: ProxyOfTest;

  beforeAll(async () => {
    fenced = await startFenced({ version });
    admin = await fenced.connectAdmin();
    await admin.query("CREATE TABLE w (i int); GRANT ALL ON w TO invoice_app");
    proxied = await startFencedProxy(fenced, 1);
  });
  afterAll(async () => {
    await proxied.stop();
    await fenced.stop();
  });

  const WAYS: Record<string, (statements: readonly string[]) => (readonly [readies: number, ...Buffer[]])[]> = {
    simple: (statements) => statements.map((sql) => [1, query(sql)]),
    "simple, in one message": (statements) => [[1, query(statements.join("; "))]],
    extended: (statements) => statements.map((sql) => [1, ...group(sql)]),
    "extended, pipelined": (statements) => [[statements.length, ...statements.flatMap((sql) => group(sql))]],
    "extended, in one group": (statements) => [[1, ...group(...statements)]],
  };

  async function heard(port: number, way: string, transactions: readonly string[][]): Promise<string[][]> {
    const client = await RawClient.open({ port });
    const answers: string[][] = [];
    for (const statements of transactions) {
      const from = client.transcript.length;
      for (const [readies, ...messages] of WAYS[way]?.(statements) ?? []) await client.exchange(readies, ...messages);
      await client.exchange(1, query("ROLLBACK"));
      answers.push(client.transcript.slice(from));
    }
    await client.end();
    return answers;
  }

  test.each(Object.keys(WAYS))("BEGIN with every option, and SET TRANSACTION behind it (%s)", async (way) => {
    const transactions = OPTIONS.flatMap((options, n) => [
      [`${HEADS[n % HEADS.length]} ${written(options, n)}`, ...INSIDE],
      ...(options.length > 0 ? [["BEGIN", `SET TRANSACTION ${written(options, n)}`, ...INSIDE]] : []),
    ]);
    const direct = await heard(fenced.postgres.port, way, transactions);
    const through = await heard(proxied.port, way, transactions);
    for (const [n, answers] of direct.entries())
      expect([transactions[n], through[n]]).toEqual([transactions[n], answers]);
    const refused = direct.filter((answers) => answers.some((line) => line.includes("C=25006")));
    expect(refused.length).toBeGreaterThan(20);
  });

  test("B20: in an aborted block an empty query, ROLLBACK TO, work again, and COMMIT", async () => {
    const block = ["BEGIN", "SAVEPOINT a", "SELECT 1/0", ";", "", "SELECT 1", "ROLLBACK TO SAVEPOINT a"];
    const statements = [...block, "INSERT INTO w VALUES (20) RETURNING i", "COMMIT"];
    for (const way of ["simple", "extended", "extended, pipelined"]) {
      const direct = await heard(fenced.postgres.port, way, [statements]);
      expect(await heard(proxied.port, way, [statements])).toEqual(direct);
    }
    expect((await admin.query("SELECT FROM w WHERE i = 20")).rowCount).toBe(6);
  });

  test.each(["simple", "extended"])("a snapshot that another transaction exported is taken over (%s)", async (way) => {
    await admin.query("TRUNCATE w");
    await admin.query("BEGIN ISOLATION LEVEL REPEATABLE READ");
    const { rows } = await admin.query("SELECT pg_export_snapshot() AS id, count(*) FROM w");
    const writer = await proxied.connect();
    await writer.query("INSERT INTO w VALUES (1)");
    const statements = ["BEGIN ISOLATION LEVEL REPEATABLE READ", `SET TRANSACTION SNAPSHOT '${rows[0].id}'`];
    const [answers] = await heard(proxied.port, way, [[...statements, "SELECT count(*) FROM w", "COMMIT"]]);
    await admin.query("COMMIT");
    expect(answers?.filter((line) => line.startsWith("E"))).toEqual([]);
    expect(answers).toContainEqual(expect.stringMatching(/^D .*0$/));
  });
});
