/**
 * Hostile bytes through the proxy to a real server, while generations are raised: what was committed is read from the
 * server's own log, and judged there (INV-3). Nothing that a client sends may keep the proxy from the next one.
 *
 * `HOSTILE_MESSAGES=100000` for more, `HOSTILE_SEED` for the same again.
 */
import type pg from "pg";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { judgeCommitOrder } from "../../testing/commitorder.ts";
import { type Fenced, startFenced } from "../../testing/fenced.ts";
import { Choices, legalMessages, mutated } from "../../testing/hostilemessages.ts";
import { judgedStatementsSql } from "../../testing/judge.ts";
import { oldestAndNewest } from "../../testing/postgres.ts";
import { type ProxyOfTest, serve } from "../../testing/proxy.ts";
import { RACE_SETTINGS } from "../../testing/race.ts";
import { RawClient } from "../../testing/rawclient.ts";
import { seededRandom } from "../../testing/seeded.ts";

const MESSAGES = Number(process.env.HOSTILE_MESSAGES ?? 5_000);
const SEED = Number(process.env.HOSTILE_SEED ?? Date.now() % 2 ** 31);
const CLIENTS = 6;
const MESSAGES_PER_CONNECTION = 60;
const GENERATIONS = 5;

describe.each(oldestAndNewest())("PostgreSQL %i", (version) => {
  let fenced: Fenced;
  let admin: pg.Client;

  beforeAll(async () => {
    fenced = await startFenced({ version, settings: { ...RACE_SETTINGS, deadlock_timeout: "50ms" } });
    admin = await fenced.connectAdmin();
    await admin.query(`${judgedStatementsSql("invoice_app")}
      GRANT CREATE ON SCHEMA public TO invoice_app;
      CREATE FUNCTION writes() RETURNS int LANGUAGE sql AS 'INSERT INTO t VALUES (9) RETURNING a';
      CREATE PROCEDURE p() LANGUAGE plpgsql AS
        'BEGIN COMMIT; SET TRANSACTION READ WRITE; INSERT INTO t VALUES (8); COMMIT; INSERT INTO t VALUES (7); END'`);
    await admin.query("SELECT pg_create_logical_replication_slot('judge', 'test_decoding')");
  });
  afterAll(() => fenced.stop());

  test("INV-3 under hostile bytes", { timeout: 120_000 + MESSAGES * 20 }, async () => {
    console.info(`PostgreSQL ${version}: HOSTILE_SEED=${SEED}`);
    const proxies = [await serve(fenced, 1)];
    const newest = (): ProxyOfTest => proxies.at(-1) as ProxyOfTest;
    let sent = 0;
    const hostile = async (choices: Choices): Promise<void> => {
      while (sent < MESSAGES) {
        const proxy = choices.chance(0.9) ? newest() : choices.of(proxies);
        sent += await oneConnection(proxy.port, choices);
      }
    };
    const raises = async (): Promise<void> => {
      for (let generation = 2; generation <= GENERATIONS; generation++) {
        while (sent < (MESSAGES * (generation - 1)) / GENERATIONS) await new Promise((next) => setImmediate(next));
        proxies.push(await serve(fenced, generation));
      }
    };
    const clients = Array.from({ length: CLIENTS }, (_, at) => hostile(new Choices(seededRandom(SEED + at))));
    await Promise.all([...clients, raises()]);

    const { rows: outside } = await admin.query("SELECT count(*)::int AS n FROM judged WHERE NOT fenced");
    expect(outside).toEqual([{ n: 0 }]);
    const { rows } = await admin.query(
      "SELECT data FROM pg_logical_slot_get_changes('judge', NULL, NULL, 'include-xids', '0', 'skip-empty-xacts', '1')",
    );
    const order = judgeCommitOrder(
      rows.map(({ data }) => data),
      "public.judged",
    );
    console.info(`PostgreSQL ${version}: ${sent} messages, ${order.commits} commits, ${order.raises} raises`);
    expect(order).toMatchObject({ raises: GENERATIONS, stale: 0, lowered: 0, example: null });
    expect(order.commits).toBeGreaterThan(MESSAGES / 400);
    // Every session has ended, and the proxy goes on.
    expect((await (await newest().connect()).query("SELECT 1 AS one")).rows).toEqual([{ one: 1 }]);
  });
});

/** Sends without waiting for answers, then its end; returns how many messages, once the proxy has closed. */
async function oneConnection(port: number, choices: Choices): Promise<number> {
  const client = await RawClient.open({ port });
  const changes = choices.of([0, 0.01, 0.05, 0.3]);
  let sent = 0;
  while (sent < MESSAGES_PER_CONNECTION && !client.closed) {
    const messages = legalMessages(choices);
    sent += messages.length;
    client.send(mutated(messages, choices, changes));
    if (choices.chance(0.2)) await new Promise((next) => setImmediate(next));
  }
  await client.end();
  return sent;
}
