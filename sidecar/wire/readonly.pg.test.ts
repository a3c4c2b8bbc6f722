/**
 * A session's own read-only default, which the proxy must follow by itself: on the server it is always on. What a
 * function or set_config turns on is not seen (docs/ways-around.md, "Differences").
 */
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { type Fenced, startFenced } from "../../testing/fenced.ts";
import { oldestAndNewest } from "../../testing/postgres.ts";
import { type ProxyOfTest, startFencedProxy } from "../../testing/proxy.ts";
import { RawClient } from "../../testing/rawclient.ts";
import { group } from "../../testing/requests.ts";
import { query, sync } from "./messages.ts";

const INSERT = "INSERT INTO w VALUES (1)";
/** How drivers and people ask whether they may write; JDBC's targetServerType and pgx's target_session_attrs the first. */
const SHOWING = [
  "SHOW transaction_read_only",
  'show "transaction_read_only"',
  "SELECT current_setting('transaction_read_only')",
];

describe.each(oldestAndNewest())("PostgreSQL %i", (version) => {
  let fenced: Fenced;
  let proxy: ProxyOfTest;

  beforeAll(async () => {
    fenced = await startFenced({ version });
    const admin = await fenced.connectAdmin();
    await admin.query("CREATE TABLE w (i int); GRANT ALL ON w TO invoice_app");
    proxy = await startFencedProxy(fenced, 1);
  });
  afterAll(async () => {
    await proxy.stop();
    await fenced.stop();
  });

  const SETTINGS: string[][] = [
    [
      "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
      "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED",
    ],
    ["SET default_transaction_read_only = 'on'"],
    ["SET default_transaction_read_only = 1"],
    ["SET default_transaction_read_only = true", "SET default_transaction_read_only TO DEFAULT"],
    ["SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY", "RESET default_transaction_read_only"],
    ['SET "default_transaction_read_only" TO "on"'],
    ["SET default_transaction_read_only TO $$yes$$"],
    ["SET default_transaction_read_only = 0"],
    ["BEGIN", "SET default_transaction_read_only = on", "COMMIT"],
    ["SET default_transaction_read_only = on; SELECT 1/0"],
    ["BEGIN", "SET default_transaction_read_only = on", "SELECT 1/0", "COMMIT"],
    ["SET default_transaction_read_only = on; SELECT 1/0; COMMIT"],
    ["SET default_transaction_read_only = on; COMMIT; SET default_transaction_read_only = off; SELECT 1/0; COMMIT"],
    ["BEGIN; SET default_transaction_read_only = on; SELECT 1/0; COMMIT", "COMMIT"],
    ["BEGIN", "SELECT 1", "SET default_transaction_read_only = on; SELECT 1/0; COMMIT", "ROLLBACK"],
    ["BEGIN", "SET default_transaction_read_only = on; COMMIT; BEGIN; SELECT 1/0", "ROLLBACK"],
    ["SET default_transaction_read_only = on", "DISCARD ALL"],
    ["SET default_transaction_read_only = on", "RESET ALL"],
    ["BEGIN", "SET default_transaction_read_only = on", "ROLLBACK"],
  ];

  const table = SETTINGS.flatMap((settings) => [["simple", settings] as const, ["extended", settings] as const]);
  test.each(table)(
    "a session is read-only when, and only when, it would be without the proxy (%s): %j",
    async (how, settings) => {
      const heard: (string | undefined)[][] = [];
      for (const port of [fenced.postgres.port, proxy.port]) {
        const answers: (string | undefined)[] = [];
        const client = await RawClient.open({ port });
        for (const sql of settings) {
          if (how === "simple") await client.exchange(1, query(sql));
          else await client.exchange(1, ...sql.split("; ").flatMap((one) => group(one).slice(0, -1)), sync());
        }
        for (const sql of [INSERT, ...SHOWING]) {
          for (const request of [[query(sql)], group(sql)]) {
            answers.push((await client.exchange(1, ...request)).find((line) => /^[CDE]/.test(line)));
          }
        }
        await client.end();
        heard.push(answers);
      }
      expect(heard[1]).toEqual(heard[0]);
    },
  );

  const blocks = [["BEGIN"], ["BEGIN READ ONLY"], ["BEGIN", "SET TRANSACTION READ ONLY"], ["BEGIN", "SELECT 1/0"]];
  test.each(blocks.flatMap((block) => [["simple", block] as const, ["extended", block] as const]))(
    "in a block it is shown, too, and disturbs no isolation level behind it (%s): %j",
    async (how, block) => {
      const heard: string[][] = [];
      for (const port of [fenced.postgres.port, proxy.port]) {
        const client = await RawClient.open({ port });
        const from = client.transcript.length;
        for (const sql of [
          ...block,
          ...SHOWING.slice(0, 2),
          "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE",
          "COMMIT",
        ]) {
          await client.exchange(1, ...(how === "simple" ? [query(sql)] : group(sql)));
        }
        heard.push(client.transcript.slice(from));
        await client.end();
      }
      expect(heard[1]).toEqual(heard[0]);
    },
  );
});
