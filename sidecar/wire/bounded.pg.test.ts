/**
 * INV-13 through the proxy: whatever the clients of the old generation do, or do not do any more, the next generation is
 * raised within the drain time and a stated bound; none of their rows is committed behind it (INV-3), none of their locks
 * is left, and each of them gets an error (INV-10).
 *
 * Judged by the order of commits that logical decoding tells, not by what clients were told.
 */
import type pg from "pg";
import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import { MOVE_GRACE_MS } from "../../fence/move.ts";
import { judgeCommitOrder } from "../../testing/commitorder.ts";
import { type Failure, type Fenced, failure, startFenced, until } from "../../testing/fenced.ts";
import { oldestAndNewest } from "../../testing/postgres.ts";
import { type ProxyOfTest, serveNewJob } from "../../testing/proxy.ts";
import { RACE_SETTINGS } from "../../testing/race.ts";
import { RawClient } from "../../testing/rawclient.ts";
import { bind, copyData, execute, flush, parse, query } from "./messages.ts";

const LEVELS = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];
const DRAIN_MS = 300;
const BUSY_CLIENTS = 32;
const WRITE = "INSERT INTO ledger (generation) VALUES (1)";
/** More than all sockets on the way can hold. */
const MUCH = "SELECT repeat('x', 1000000) FROM generate_series(1, 100)";

interface Scene {
  readonly proxy: ProxyOfTest;
  readonly admin: pg.Client;
  readonly level: string;
}

/** Brings clients into their state; what it returns resolves to the error of each of them, once it was ended. */
type Clients = (scene: Scene) => Promise<() => Promise<Failure[]>>;

describe.each(oldestAndNewest())("PostgreSQL %i", (version) => {
  let fenced: Fenced;
  let admin: pg.Client;

  beforeAll(async () => {
    fenced = await startFenced({ version, settings: RACE_SETTINGS });
    admin = await fenced.connectAdmin();
    await admin.query(`
      CREATE TABLE ledger (id bigserial PRIMARY KEY, generation bigint NOT NULL);
      GRANT ALL ON ledger, ledger_id_seq TO invoice_app;
      CREATE PROCEDURE slow() LANGUAGE plpgsql AS $$ BEGIN ${WRITE}; COMMIT; ${WRITE}; PERFORM pg_sleep(60); END $$`);
  });
  afterEach(async () => {
    await admin.query("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots");
  });
  afterAll(() => fenced.stop());

  async function commits(): Promise<string[]> {
    const { rows } = await admin.query(
      "SELECT data FROM pg_logical_slot_get_changes('judge', NULL, NULL, 'include-xids', '0', 'skip-empty-xacts', '1')",
    );
    return rows.map(({ data }) => data);
  }

  const cases = Object.entries(CLIENTS).flatMap(([name, clients]) => LEVELS.map((level) => ({ name, clients, level })));
  test.each(cases)("INV-13: $name at $level", async ({ clients, level }) => {
    await admin.query("SELECT pg_create_logical_replication_slot('judge', 'test_decoding')");
    const { job, proxy } = await serveNewJob(fenced, { drainMs: DRAIN_MS });
    const ended = await clients({ proxy, admin, level });

    const { tookMs, sessionsEnded } = await job.raise(2, { drainMs: DRAIN_MS });
    expect(tookMs).toBeLessThan(DRAIN_MS + MOVE_GRACE_MS);
    expect(sessionsEnded).toBeGreaterThan(0);
    // The successor begins: nothing of the old generation holds a lock against it.
    await admin.query(
      "BEGIN; LOCK TABLE ledger IN ACCESS EXCLUSIVE MODE NOWAIT; INSERT INTO ledger (generation) VALUES (2); COMMIT",
    );

    for (const error of await ended()) expect(["LF001", "08007", "cut"]).toContain(error.code);
    const order = judgeCommitOrder(await commits(), "public.ledger");
    expect(order).toMatchObject({ raises: 2, stale: 0, lowered: 0, example: null });
  });
});

const CLIENTS: Record<string, Clients> = {
  [`${BUSY_CLIENTS} busy clients`]: async ({ proxy, level }) => {
    const clients = await Promise.all(Array.from({ length: BUSY_CLIENTS }, () => proxy.connect()));
    let begun = 0;
    const working = clients.map(async (client, at): Promise<Failure> => {
      for (let round = 0; ; round++) {
        try {
          await client.query(`BEGIN ISOLATION LEVEL ${level}`);
          if (at % 2 === 0) await client.query(WRITE);
          else await client.query("INSERT INTO ledger (generation) VALUES ($1)", [1]);
          begun += round === 0 ? 1 : 0;
          await client.query("COMMIT");
        } catch (error) {
          // A serialization failure is the client's own business: it tries again, as applications do.
          if ((error as Failure).code !== "40001") return error as Failure;
          await client.query("ROLLBACK");
        }
      }
    });
    while (begun < BUSY_CLIENTS) await new Promise((resolve) => setImmediate(resolve));
    return () => Promise.all(working);
  },

  "clients idle in a transaction that has written": async ({ proxy, level }) => {
    const clients = await Promise.all(Array.from({ length: 4 }, () => proxy.connect()));
    for (const [at, client] of clients.entries()) {
      await client.query(`BEGIN ISOLATION LEVEL ${level}`);
      if (at % 2 === 0) await client.query(WRITE);
      else await client.query("INSERT INTO ledger (generation) VALUES ($1)", [1]);
    }
    return () => Promise.all(clients.map((client) => failure(client.query("COMMIT"))));
  },

  "a client that never reads its answers": async ({ proxy, admin, level }) => {
    const simple = await RawClient.open({ port: proxy.port, parameters: { application_name: "deaf" } });
    await simple.exchange(1, query(`BEGIN ISOLATION LEVEL ${level}; ${WRITE}`));
    const extended = await RawClient.open({ port: proxy.port, parameters: { application_name: "deaf" } });
    await extended.exchange(1, query(`BEGIN ISOLATION LEVEL ${level}; ${WRITE}`));
    for (const client of [simple, extended]) client.socket.pause();
    simple.send(query(`${MUCH}; COMMIT`));
    extended.send(parse("", MUCH), bind("", ""), execute(""), flush());
    await until(
      admin,
      "SELECT count(*) = 2 FROM pg_stat_activity WHERE application_name = 'deaf' AND wait_event = 'ClientWrite'",
    );
    return async () => {
      for (const client of [simple, extended]) client.socket.resume();
      return [await lastError(simple), await lastError(extended)];
    };
  },

  "a client that stops in the middle of its COPY": async ({ proxy, level }) => {
    const inBlock = await RawClient.open({ port: proxy.port });
    await inBlock.exchange(1, query(`BEGIN ISOLATION LEVEL ${level}`));
    const alone = await RawClient.open({
      port: proxy.port,
      parameters: { default_transaction_isolation: level.toLowerCase() },
    });
    for (const client of [inBlock, alone]) {
      client.send(query("COPY ledger (generation) FROM STDIN"));
      await client.until(() => client.transcript.at(-1)?.startsWith("G") === true);
      client.send(copyData(Buffer.from("1\n".repeat(1000))));
    }
    return async () => [await lastError(inBlock), await lastError(alone)];
  },

  "a client inside a bracket": async ({ proxy, admin, level }) => {
    const options = `-c default_transaction_isolation=${level.toLowerCase().replace(" ", "\\ ")}`;
    const client = await proxy.connect({ options });
    const extended = await proxy.connect({ options });
    const calling = failure(client.query("CALL slow()"));
    const callingToo = failure(
      extended.query({ text: "CALL slow()", values: [], queryMode: "extended" } as pg.QueryConfig),
    );
    await until(admin, "SELECT count(*) = 2 FROM pg_stat_activity WHERE wait_event = 'PgSleep'");
    return () => Promise.all([calling, callingToo]);
  },
};

/** What the session ended with. An end in the middle of a row is one that every driver makes an exception of. */
async function lastError(client: RawClient): Promise<Failure> {
  await client.until(() => client.closed);
  const last = client.transcript.at(-1) ?? "";
  const code = /^E S=FATAL C=(\w+)/.exec(last)?.[1] ?? (client.partWay ? "cut" : `no error but ${last.slice(0, 80)}`);
  return Object.assign(new Error(last), { code, detail: "", hint: "" });
}
