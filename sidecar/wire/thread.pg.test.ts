/** The wire in its own thread, as the sidecar runs it. */
import { execFileSync } from "node:child_process";
import pg from "pg";
import { afterAll, beforeAll, expect, test } from "vitest";
import { Permit } from "../../lease/permit.ts";
import { systemClock } from "../../platform/clock.ts";
import { silentLogger } from "../../platform/log.ts";
import { type Fenced, failure, startFenced } from "../../testing/fenced.ts";
import { LAST_MESSAGE_MS_MAX } from "./relay.ts";
import { startWire, type Wire } from "./thread.ts";

let fenced: Fenced;
beforeAll(async () => {
  fenced = await startFenced();
  const admin = await fenced.connectAdmin();
  await admin.query("CREATE TABLE ledger (i int); GRANT ALL ON ledger TO invoice_app");
});
afterAll(() => fenced.stop());

async function start(name: string): Promise<{
  wire: Wire;
  permit: Permit;
  lost: string[];
  serve: () => void;
  raise: () => Promise<unknown>;
  connect: () => Promise<pg.Client>;
}> {
  const job = fenced.job(name);
  const { jobId, incarnation } = await job.raise(1);
  const permit = new Permit();
  const lost: string[] = [];
  const wire = await startWire({
    listen: { host: "127.0.0.1", port: 0 },
    permit,
    log: silentLogger,
    lost: (why) => lost.push(why),
  });
  const serve = (): void => {
    permit.open();
    wire.serve({ address: fenced.address, jobId, incarnation, identity: job.identity(1) });
  };
  const connect = async (): Promise<pg.Client> => {
    const client = new pg.Client({ host: "127.0.0.1", port: wire.port, user: "x", database: "postgres" });
    client.on("error", () => {});
    await client.connect();
    return client;
  };
  return { wire, permit, lost, serve, raise: () => job.raise(2), connect };
}

test("INV-4: a client waits until it is served, then works; INV-5: the thread sees the permit's deadline", async () => {
  const { wire, permit, lost, serve, connect } = await start("thread/permit");
  const connecting = connect();
  serve();
  const client = await connecting;
  expect(await failure(client.query("INSERT INTO ledger VALUES (1)"))).toMatchObject({ code: "LF002" });
  permit.extend(systemClock.monoMs() + 60_000);
  await client.query("INSERT INTO ledger VALUES (1)");
  expect(wire.rejectedWrites()).toBe(1);
  expect(wire.counts()).toMatchObject({ sessionsOpen: 1, sessionsTotal: 1, refusedUnconfirmed: 1, refusedLost: 0 });
  await client.end();
  await wire.stop();
  expect(lost).toEqual([]);
});

test("INV-7: a blocked main thread keeps the thread from nothing, and its loss is told to it once, however often it is asked", async () => {
  const { wire, permit, lost, serve, raise, connect } = await start("thread/lost");
  serve();
  permit.extend(systemClock.monoMs() + 60_000);
  const client = await connect();
  await client.query("BEGIN");
  await client.query("INSERT INTO ledger VALUES (2)");
  // This thread does nothing until psql has ended.
  const where = `host=127.0.0.1 port=${wire.port} user=x dbname=postgres`;
  const said = execFileSync("psql", ["-XAt", "-c", "INSERT INTO ledger VALUES (3)", where], { encoding: "utf8" });
  expect(said.trim()).toBe("INSERT 0 1");
  await raise();
  expect(await failure(client.query("COMMIT"))).toMatchObject({ code: "LF001", severity: "FATAL" });
  expect(await failure(connect())).toMatchObject({ code: "LF001" });
  expect(await failure(connect())).toMatchObject({ code: "LF001" });
  expect(wire.rejectedWrites()).toBe(3);
  await wire.stop();
  expect(lost).toEqual([expect.stringContaining("invoice-run-2 raised the fence to generation 2")]);
});

test("a port that is taken is an error at the start, not later", async () => {
  const { wire, permit } = await start("thread/port");
  const again = startWire({
    listen: { host: "127.0.0.1", port: wire.port },
    permit,
    log: silentLogger,
    lost: () => {},
  });
  expect((await failure(again)).message).toMatch(/EADDRINUSE/);
  await wire.stop();
});

test("a client that leaves while its last message is being judged does not hold up the end", async () => {
  const { wire, permit, serve, raise, connect } = await start("thread/leaves");
  serve();
  permit.extend(systemClock.monoMs() + 60_000);
  const client = await connect();
  await client.query("BEGIN");
  await raise();
  const commit = failure(client.query("COMMIT"));
  // More than one message: the wire holds the second, and does not read on, while it asks who owns the job.
  (client as unknown as { connection: { query(text: string): void; end(): void } }).connection.query("SELECT 1");
  expect(await commit).toMatchObject({ code: "LF001" });
  await client.end();
  const startMs = systemClock.monoMs();
  await wire.stop();
  // Who is cut off for not taking its last message is so after this.
  expect(systemClock.monoMs() - startMs).toBeLessThan(LAST_MESSAGE_MS_MAX);
});
