/** Clients that come before the raise: held without a byte of the database, then served as if they had just come (INV-4). */
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { connect } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import pg from "pg";
import { afterAll, beforeAll, expect, onTestFinished, test } from "vitest";
import { Permit } from "../../lease/permit.ts";
import { systemClock } from "../../platform/clock.ts";
import { silentLogger } from "../../platform/log.ts";
import { type Fenced, failure, startFenced } from "../../testing/fenced.ts";
import { startHoldingProxy } from "../../testing/proxy.ts";
import { RawClient } from "../../testing/rawclient.ts";
import { until } from "../../testing/until.ts";
import { cancelRequest } from "./cancel.ts";
import { neverServed } from "./errors.ts";
import { query } from "./messages.ts";
import type { ProxyConfig } from "./proxy.ts";
import { fenceVerdict } from "./verdict.ts";

const FAR_MS = 86_400_000;
let fenced: Fenced;
let admin: pg.Client;
let jobs = 0;

beforeAll(async () => {
  fenced = await startFenced();
  admin = await fenced.connectAdmin();
  await admin.query("CREATE TABLE ledger (i int); GRANT ALL ON ledger TO invoice_app");
});
afterAll(() => fenced.stop());

/** A proxy of a generation that `serve` raises. */
async function aHolding(options: Partial<ProxyConfig> = {}) {
  const job = fenced.job(`held/${++jobs}`);
  const dir = mkdtempSync(join(tmpdir(), "fencedjob-held-"));
  const permit = new Permit();
  permit.extend(systemClock.monoMs() + FAR_MS);
  const proxy = await startHoldingProxy({ alsoListen: [{ host: dir, port: 5432 }], permit, ...options });
  onTestFinished(async () => {
    await proxy.close();
    rmSync(dir, { recursive: true });
  });
  const { port } = proxy;
  const raise = async (): Promise<void> => {
    const { jobId, incarnation } = await job.raise(1);
    const identity = job.identity(1);
    const verdict = fenceVerdict(() => job.address, { identity, incarnation }, systemClock);
    proxy.serve({ address: job.address, jobId, incarnation, identity, verdict });
  };
  return {
    job,
    proxy,
    port,
    dir,
    held: () => proxy.counters.read().held,
    /** Without the permit. */
    raise,
    serve: async (): Promise<void> => {
      permit.open();
      await raise();
    },
    begin: (host = "127.0.0.1"): Promise<RawClient> =>
      RawClient.begin({ host, port: host === "127.0.0.1" ? port : 5432 }),
  };
}

const sessions = async (): Promise<number> =>
  (await admin.query("SELECT count(*)::int AS n FROM pg_stat_activity WHERE usename = 'invoice_app'")).rows[0].n;

test("INV-4: over TCP and a Unix socket they hear nothing before the raise, and the server hears nothing of them", async () => {
  const { dir, held, begin, serve } = await aHolding();
  const clients = [await begin(), await begin(dir), await begin()];
  await until(() => held() === 3);
  expect(await sessions()).toBe(0);
  expect(clients.map(({ socket }) => socket.bytesRead)).toEqual([0, 0, 0]);
  // What one sends meanwhile is its first message afterwards.
  const early = clients[2] as RawClient;
  early.send(query("INSERT INTO ledger VALUES (1) RETURNING i"));
  await serve();
  for (const client of clients) await client.until(() => client.readies >= 1);
  expect(await (clients[1] as RawClient).exchange(1, query("INSERT INTO ledger VALUES (2)"))).toContain(
    "C INSERT 0 1·",
  );
  await early.until(() => early.readies === 2);
  expect(early.transcript).toContain("C INSERT 0 1·");
  expect(held()).toBe(0);
});

test("node-postgres and a client that asks for TLS first wait alike, and later ones do not wait at all", async () => {
  const { port, held, serve } = await aHolding();
  const config = { host: "127.0.0.1", port, user: "x", database: "postgres" };
  const client = new pg.Client(config);
  onTestFinished(() => client.end());
  const connecting = client.connect();
  const asking = connect({ host: "127.0.0.1", port });
  onTestFinished(() => void asking.destroy());
  asking.write(Buffer.from([0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f]));
  const [answer] = (await once(asking, "data")) as [Buffer];
  expect(answer.toString()).toBe("N");
  await until(() => held() === 1);
  await serve();
  await connecting;
  await client.query("INSERT INTO ledger VALUES (3)");
  const late = new pg.Client(config);
  onTestFinished(() => late.end());
  await late.connect();
});

test("INV-4: whoever serves before the permit is open serves nobody", async () => {
  const errors: unknown[] = [];
  const log = { ...silentLogger, error: (_text: string, fields: unknown) => errors.push(fields) };
  const { begin, held, raise } = await aHolding({ log });
  const client = await begin();
  await until(() => held() === 1);
  await raise();
  await client.until(() => false);
  expect(client.socket.bytesRead).toBe(0);
  expect(String((errors[0] as { error: Error }).error)).toContain("INV-4");
});

test("INV-10: when it will never be served, those that wait and those that come hear why", async () => {
  const { job, port, proxy, held, begin, serve } = await aHolding();
  const client = await begin();
  await until(() => held() === 1);
  proxy.refuse(neverServed("billing/run", 7, "the Lease names run-2 with generation 8"));
  await client.until(() => false);
  expect(client.transcript).toHaveLength(1);
  expect(client.transcript[0]).toMatch(/^E S=FATAL C=LF001 M=LF001: generation 7 .* is over before it was raised /);
  expect(client.transcript[0]).toContain("D=the Lease names run-2 with generation 8.");
  // For good.
  await serve();
  const late = new pg.Client({ host: "127.0.0.1", port, user: "x", database: "postgres" });
  expect(await failure(late.connect())).toMatchObject({ severity: "FATAL", code: "LF001" });
  expect((await job.row())?.generation).toBe(1);
});

test("the pod's end is told to those that wait", async () => {
  const { proxy, held, begin } = await aHolding();
  const client = await begin();
  await until(() => held() === 1);
  const closed = proxy.close();
  await client.until(() => false);
  await closed;
  expect(client.transcript).toHaveLength(1);
  expect(client.transcript[0]).toMatch(/^E S=FATAL C=57P01 /);
});

test("who leaves, by a farewell, a reset or a timeout of its own, leaves nothing", async () => {
  const { proxy, port, held, begin } = await aHolding();
  for (let round = 0; round < 3; round++) {
    const clients = await Promise.all(Array.from({ length: 40 }, () => begin()));
    const impatient = new pg.Client({ host: "127.0.0.1", port, user: "x", connectionTimeoutMillis: 100 });
    impatient.on("error", () => {});
    expect((await failure(impatient.connect())).message).toMatch(/timeout/);
    await until(() => held() === 40);
    // A cancel request of one that waits: nothing of it runs.
    connect({ host: "127.0.0.1", port }).end(cancelRequest(1, Buffer.alloc(4)));
    for (const [i, { socket }] of clients.entries()) {
      if (i % 2) socket.end();
      else socket.resetAndDestroy();
    }
    await until(() => held() === 0 && proxy.connections === 0);
  }
  // Those of the tests before may still be ending.
  await until(async () => (await sessions()) === 0);
});

test("they are counted: beyond the maximum the next is refused at once, and gets in when one has left", async () => {
  const { held, begin, serve } = await aHolding({ sessionsMax: 2 });
  const [first, second] = [await begin(), await begin()];
  await until(() => held() === 2);
  const third = await begin();
  await third.until(() => false);
  expect(third.transcript[0]).toMatch(/^E S=FATAL C=53300 /);
  await first.end();
  await until(() => held() === 1);
  const fourth = await begin();
  await until(() => held() === 2);
  await serve();
  for (const client of [second, fourth]) await client.until(() => client.readies === 1);
});

test("what one sends while it waits is bounded", async () => {
  const { proxy, held, begin } = await aHolding();
  const client = await begin();
  await until(() => held() === 1);
  client.send(Buffer.alloc(65 * 1024));
  await client.until(() => false);
  expect(client.transcript[0]).toMatch(/^E S=FATAL C=08P01 /);
  await until(() => held() === 0 && proxy.connections === 0);
});
