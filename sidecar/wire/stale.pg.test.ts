/**
 * A list of hosts with an old primary that a failover has left running. Raise, sessions and cancels may each come to another
 * server of it, as one or the other is out of reach, but never settle in two histories: each session is one in the history
 * that its pod's raise was answered from, or it is refused (INV-10).
 */
import { execFileSync } from "node:child_process";
import { appendFileSync, rmSync, writeFileSync } from "node:fs";
import { connect, createServer, type Server, type Socket } from "node:net";
import { join } from "node:path";
import pg from "pg";
import { afterAll, beforeAll, beforeEach, describe, expect, onTestFinished, test } from "vitest";
import type { DatabaseAddress } from "../../fence/database.ts";
import { Permit } from "../../lease/permit.ts";
import { systemClock } from "../../platform/clock.ts";
import { silentLogger } from "../../platform/log.ts";
import { systemRandom } from "../../platform/random.ts";
import { type Fenced, failure, type JobOfTest, startFenced, until as untilTrue } from "../../testing/fenced.ts";
import { freePort, oldestAndNewest, startPostgres, type TestPostgres } from "../../testing/postgres.ts";
import { type ProxyOfTest, serve as serveJob } from "../../testing/proxy.ts";
import { RawClient } from "../../testing/rawclient.ts";
import { until } from "../../testing/until.ts";
import { cancelRequest } from "./cancel.ts";
import { query } from "./messages.ts";
import { probeSession } from "./probe.ts";
import { startWire } from "./thread.ts";

const JOBS = 8;
const HOST = "127.0.0.1";

describe.each(oldestAndNewest())("PostgreSQL %i", (version) => {
  /** The primary that was: it serves on, in the history that is thrown away. */
  let old: Fenced;
  /** Its replica, promoted. */
  let present: TestPostgres;
  let oldAdmin: pg.Client;
  let presentAdmin: pg.Client;
  let toOld: Door;
  let toPresent: Door;
  /** The old one first. */
  let address: DatabaseAddress;
  let histories: { old: string; present: string };
  let jobs = 0;
  /** Generation 1 was raised before the failover, so that both have it. */
  let job: JobOfTest;

  beforeAll(async () => {
    old = await startFenced({ version });
    present = await startPostgres({ version });
    await old.postgres.stop("fast");
    await present.stop("fast");
    rmSync(present.dataDir, { recursive: true });
    execFileSync("cp", ["-a", old.postgres.dataDir, present.dataDir]);
    writeFileSync(join(present.dataDir, "standby.signal"), "");
    const source = `host=${HOST} port=${old.postgres.port} user=postgres`;
    appendFileSync(join(present.dataDir, "postgresql.auto.conf"), `primary_conninfo = '${source}'\n`);
    await old.postgres.start();
    await present.start();
    oldAdmin = await old.connectAdmin();
    presentAdmin = new pg.Client(present.url());
    presentAdmin.on("error", () => {});
    await presentAdmin.connect();
    await oldAdmin.query("CREATE TABLE ledger (note text); GRANT ALL ON ledger TO invoice_app");
    for (let n = 1; n <= JOBS; n++) await old.job(`test/stale-${n}`).raise(1);
    const { lsn } = (await oldAdmin.query("SELECT pg_current_wal_flush_lsn() AS lsn")).rows[0];
    await untilTrue(presentAdmin, "SELECT pg_last_wal_replay_lsn() >= $1::pg_lsn", [lsn]);
    await presentAdmin.query("SELECT pg_promote()");
    const incarnation = async (client: pg.Client): Promise<string> =>
      (await client.query("SELECT fence.incarnation() AS i")).rows[0].i;
    histories = { old: await incarnation(oldAdmin), present: await incarnation(presentAdmin) };
    expect(histories.old).not.toBe(histories.present);
    toOld = await Door.to(old.postgres.port);
    toPresent = await Door.to(present.port);
    address = { ...old.address, port: toOld.port, furtherHosts: [{ host: HOST, port: toPresent.port }] };
  });
  beforeEach(async () => {
    await toOld.open();
    await toPresent.open();
    const one = old.job(`test/stale-${++jobs}`);
    job = { ...one, address, raise: (generation, options) => one.raise(generation, { address, ...options }) };
  });
  afterAll(async () => {
    await toOld.shut();
    await toPresent.shut();
    await presentAdmin.end();
    await present.remove();
    await old.stop();
  });

  const serve = (generation: number, raise: JobOfTest["raise"] = job.raise): Promise<ProxyOfTest> =>
    serveJob({ ...job, raise }, generation);
  const historyOf = async (client: pg.Client): Promise<string> =>
    (await client.query("SELECT fence.incarnation() AS i")).rows[0].i;
  const notes = async (admin: pg.Client): Promise<string[]> =>
    (await admin.query("SELECT note FROM ledger WHERE note LIKE $1", [`${jobs} %`])).rows.map(({ note }) => note);

  test("the raise went to the present primary: sessions that meet the old one are refused, the others and their cancels go on", async () => {
    await toOld.shut();
    const proxy = await serve(2);
    const client = await proxy.connect();
    const raw = await RawClient.open({ port: proxy.port });
    expect(await historyOf(client)).toBe(histories.present);

    await toOld.open();
    const refused = await failure(proxy.connect());
    expect(refused).toMatchObject({ severity: "FATAL", code: "LF003" });
    expect(refused.detail).toBe(`The fence was raised in ${histories.present}; this database is ${histories.old}.`);
    const world = { clock: systemClock, random: systemRandom, signal: new AbortController().signal };
    const raised = { jobId: proxy.jobId, incarnation: histories.present };
    expect(await probeSession(address, raised, job.identity(2), world)).toMatchObject({ code: "LF003" });

    await client.query("INSERT INTO ledger VALUES ($1)", [`${jobs} present`]);
    raw.send(query("SELECT pg_sleep(60)"));
    await untilTrue(presentAdmin, "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'PgSleep'");
    connect(proxy.port, HOST).end(cancelRequest(raw.key.readInt32BE(0), raw.key.subarray(4)));
    await raw.until(() => raw.readies === 2);
    expect(raw.transcript.some((line) => line.includes("C=57014"))).toBe(true);
    await raw.end();
    expect([await notes(oldAdmin), await notes(presentAdmin)]).toEqual([[], [`${jobs} present`]]);

    await toOld.shut();
    expect(await historyOf(await proxy.connect())).toBe(histories.present);
  });

  test("the raise went to the old primary, which answered first: no session at the present one, whose row is lower", async () => {
    const proxy = await serve(2);
    const client = await proxy.connect();
    expect(await historyOf(client)).toBe(histories.old);
    await toOld.shut();
    await failure(client.query("SELECT 1"));
    const refused = await failure(proxy.connect());
    expect(refused).toMatchObject({ severity: "FATAL", code: "LF003" });
    expect(refused.detail).toBe(`The fence was raised in ${histories.old}; this database is ${histories.present}.`);
    await toPresent.shut();
    expect(await failure(proxy.connect())).toMatchObject({ code: "LF015" });
    await toOld.open();
    expect(await historyOf(await proxy.connect())).toBe(histories.old);
  });

  test("a raise that committed on both, as its answer was lost in between: only the history of the answer counts", async () => {
    const twice: JobOfTest["raise"] = async (generation) => {
      expect(await job.raise(generation)).toMatchObject({ incarnation: histories.old });
      await toOld.shut();
      return await job.raise(generation);
    };
    const proxy = await serve(2, twice);
    const client = await proxy.connect();
    expect(await historyOf(client)).toBe(histories.present);
    await toOld.open();
    expect((await oldAdmin.query("SELECT generation::int FROM fence.job WHERE id = $1", [proxy.jobId])).rows).toEqual([
      { generation: 2 },
    ]);
    const refused = await failure(proxy.connect());
    expect(refused).toMatchObject({ severity: "FATAL", code: "LF003" });
    expect(refused.detail).toBe(`The fence was raised in ${histories.present}; this database is ${histories.old}.`);
    await toOld.shut();
    expect(await historyOf(await proxy.connect())).toBe(histories.present);
  });

  test("a job that the old primary has never heard of: another history, too", async () => {
    await toOld.shut();
    const unknown = old.job("test/stale-unknown");
    job = { ...unknown, address, raise: (generation, options) => unknown.raise(generation, { address, ...options }) };
    const proxy = await serve(1);
    await toOld.open();
    const refused = await failure(proxy.connect());
    expect(refused).toMatchObject({ severity: "FATAL", code: "LF003" });
    expect(refused.detail).toBe(
      `The fence was raised in ${histories.present}; this database is one that does not know the job.`,
    );
  });

  test("an owner from before the failover and its successor at the present primary: each has sessions in its own history only", async () => {
    const predecessor = await serve(1);
    const before = await predecessor.connect();
    expect(await historyOf(before)).toBe(histories.old);
    await before.end(); // one that the failover ends would ask at once, and be told of the other history
    await toOld.shut();
    const successor = await serve(2);
    expect(await historyOf(await successor.connect())).toBe(histories.present);
    // Both are true there, and that somebody has taken over tells more.
    expect(await failure(predecessor.connect())).toMatchObject({ severity: "FATAL", code: "LF001" });
    await toOld.open();
    await toPresent.shut();
    expect(await failure(successor.connect())).toMatchObject({ code: "LF003" });
    expect(await historyOf(await predecessor.connect())).toBe(histories.old);
  });

  test("INV-7: a pod whose first session meets another history is lost, and says why", async () => {
    await toOld.shut();
    const { jobId, incarnation } = await job.raise(2);
    const permit = new Permit();
    permit.extend(systemClock.monoMs() + 60_000);
    permit.open();
    const lost: string[] = [];
    const wire = await startWire({
      listen: { host: HOST, port: 0 },
      permit,
      log: silentLogger,
      lost: (why) => lost.push(why),
    });
    wire.serve({ address, jobId, incarnation, identity: job.identity(2) });
    onTestFinished(() => wire.stop());
    await toOld.open();
    const client = new pg.Client({ host: HOST, port: wire.port, user: "x", database: "postgres" });
    client.on("error", () => {});
    expect(await failure(client.connect())).toMatchObject({ code: "LF003" });
    expect(await until(() => lost[0])).toBe(
      `the history of the database changed from ${histories.present} to ${histories.old}`,
    );
  });
});

/** A way to a server that can be shut: what goes through it ends, and nothing comes in until it is open again. */
class Door {
  readonly port: number;
  readonly #server: Server;
  readonly #through = new Set<Socket>();

  private constructor(server: Server, to: number) {
    this.#server = server;
    this.port = (server.address() as { port: number }).port;
    server.on("connection", (socket) => {
      const onward = connect(to, HOST);
      for (const end of [socket, onward]) {
        this.#through.add(end);
        end.on("error", () => {}).on("close", () => this.#through.delete(end));
      }
      socket.pipe(onward).pipe(socket);
      socket.on("close", () => onward.destroy());
      onward.on("close", () => socket.destroy());
    });
  }

  static async to(port: number): Promise<Door> {
    const server = createServer();
    // While it is shut, nobody else is to be given its port.
    const own = await freePort();
    await new Promise<void>((resolve) => server.listen(own, HOST, resolve));
    return new Door(server, port);
  }

  async open(): Promise<void> {
    if (!this.#server.listening) await new Promise<void>((resolve) => this.#server.listen(this.port, HOST, resolve));
  }

  async shut(): Promise<void> {
    if (!this.#server.listening) return;
    const closed = new Promise<void>((resolve) => this.#server.close(() => resolve()));
    for (const socket of this.#through) socket.destroy();
    await closed;
  }
}
