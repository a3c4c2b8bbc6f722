/** The sidecar's life against a real PostgreSQL, with its proxies in their own threads; the Lease is a modelled one. */
import { mkdirSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import pg from "pg";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { install } from "../fence/client.ts";
import { withConnection } from "../fence/connection.ts";
import type { TakeOver } from "../fence/database.ts";
import { makeRole } from "../fence/role.ts";
import { type RawLease, readLease } from "../lease/record.ts";
import { parseReport, type Report } from "../lease/report.ts";
import type { SidecarConfig } from "../lease/sidecarconfig.ts";
import { systemClock } from "../platform/clock.ts";
import { silentLogger } from "../platform/log.ts";
import { systemRandom } from "../platform/random.ts";
import { type Fenced, startFenced, told } from "../testing/fenced.ts";
import { ModelledLease } from "../testing/modelledlease.ts";
import { freePort } from "../testing/postgres.ts";
import { until } from "../testing/until.ts";
import { readCredentials } from "./credentials.ts";
import { type SidecarState, startSidecarServer } from "./http.ts";
import { Sidecar } from "./sidecar.ts";
import { probeSession } from "./wire/probe.ts";
import { startWire } from "./wire/thread.ts";

const TIMING = { durationMs: 3_000, renewIntervalMs: 300, requestTimeoutMs: 300, marginMs: 500 };

let fenced: Fenced;
let dir: string;
let jobs = 0;
let fenceName: string;
const ends: (() => Promise<void>)[] = [];

beforeAll(async () => {
  fenced = await startFenced({ version: 18 });
  const admin = await fenced.connectAdmin();
  await admin.query(`CREATE TABLE written (generation int); GRANT SELECT, INSERT ON written TO ${fenced.address.user}`);
});

afterAll(() => fenced?.stop());

beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "fencedjob-sidecar-"));
  fenceName = `n/job-${++jobs}`;
});

afterEach(async () => {
  for (const end of ends.splice(0)) await end();
  rmSync(dir, { recursive: true, force: true });
});

function secret(values: Record<string, string>, database = "ledger"): void {
  mkdirSync(join(dir, database), { recursive: true });
  for (const [key, value] of Object.entries(values)) writeFileSync(join(dir, database, key), value);
}

function addressValues(): Record<string, string> {
  const { host, port, database, user, sslmode } = fenced.address;
  return { host, port: String(port), dbname: database, user, sslmode };
}

const goodSecret = (): void => secret(addressValues());

async function aSidecar(
  change: {
    generation?: number;
    api?: ModelledLease;
    port?: number;
    uid?: string;
    socketDir?: string;
    takeOver?: TakeOver;
    purpose?: "close";
    closes?: SidecarConfig["closes"];
  } = {},
) {
  const uid = change.uid ?? "uid-1";
  const generation = change.generation ?? 1;
  const api = change.api ?? new ModelledLease(systemClock, { holder: uid, generation });
  const port = change.port ?? (await freePort());
  const httpPort = await freePort();
  const lastWordsPath = join(dir, `last-words-${uid}`);
  const sidecar = new Sidecar({
    config: {
      namespace: "n",
      job: "job",
      fenceName,
      issuer: "test",
      ...(change.purpose && { purpose: change.purpose }),
      ...(change.takeOver && { takeOver: change.takeOver }),
      ...(change.closes && { closes: change.closes }),
      timing: TIMING,
      drainMs: 200,
      databases: [
        {
          name: "ledger",
          port,
          secretName: "ledger-db",
          dir: join(dir, "ledger"),
          ...(change.socketDir && { socketDir: change.socketDir }),
        },
      ],
      tokenDir: dir,
      httpPort,
    },
    pod: { name: `pod-${uid}`, uid },
    api,
    clock: systemClock,
    random: systemRandom,
    log: silentLogger,
    databases: { credentials: readCredentials, connect: withConnection, probe: probeSession },
    startWire,
    startServer: startSidecarServer,
    leaveLastWords: (words) => writeFileSync(lastWordsPath, JSON.stringify(words)),
  });
  const stop = new AbortController();
  const running = sidecar.run(stop.signal);
  const end = async (): Promise<void> => {
    stop.abort(new Error("SIGTERM"));
    await running;
  };
  ends.push(end);
  const status = async (): Promise<SidecarState> =>
    (await (await fetch(`http://127.0.0.1:${httpPort}/status`)).json()) as SidecarState;
  return {
    api,
    port,
    end,
    running,
    closed: () => sidecar.closed,
    started: async () => (await status()).started,
    status,
    report: (): Report | null => parseReport(readLease(api.lease as RawLease).report),
    lastWords: () => JSON.parse(readFileSync(lastWordsPath, "utf8")),
  };
}

async function connect(port: number, host = "127.0.0.1"): Promise<pg.Client> {
  const client = new pg.Client({ host, port, user: "app", database: fenced.address.database });
  client.on("error", () => {});
  await client.connect();
  ends.push(() => client.end().catch(() => {}));
  return client;
}

const refused = async (port: number): Promise<string> => {
  try {
    await connect(port);
    return "";
  } catch (error) {
    return String((error as { code?: string }).code);
  }
};

describe("INV-4: raise before read", () => {
  test("the probe fails and nothing listens until the fence is raised; then the application is served, fenced", async () => {
    const sidecar = await aSidecar();
    await until(() => sidecar.report()?.failures[0]?.code === "LF017");
    expect(await sidecar.started()).toBe(false);
    expect(await refused(sidecar.port)).toBe("ECONNREFUSED");
    goodSecret();
    await until(() => sidecar.started());
    expect(sidecar.report()).toMatchObject({
      generation: 1,
      failures: [],
      fences: [{ database: "ledger", generation: 1 }],
    });
    const client = await connect(sidecar.port);
    await client.query("INSERT INTO written VALUES (1)");
    expect(await fenced.job(fenceName).row()).toMatchObject({ generation: 1, holder: "uid-1" });
  });

  test("a Unix socket beside the port, for containers that run as any user", async () => {
    goodSecret();
    const sidecar = await aSidecar({ socketDir: dir });
    await until(() => sidecar.started());
    for (const host of [dir, "127.0.0.1"]) await connect(sidecar.port, host);
    expect(statSync(join(dir, `.s.PGSQL.${sidecar.port}`)).mode & 0o777).toBe(0o777);
  });

  test("a port that another process has is told, and taken when it is free", async () => {
    goodSecret();
    const taker = createServer();
    await new Promise<void>((resolve) => taker.listen(0, "127.0.0.1", resolve));
    const { port } = taker.address() as { port: number };
    const sidecar = await aSidecar({ port });
    await until(() => sidecar.report()?.failures[0]?.code === "LF018");
    expect(await sidecar.started()).toBe(false);
    await new Promise((resolve) => taker.close(resolve));
    await until(() => sidecar.started());
    await until(() => sidecar.report()?.failures.length === 0);
  });

  test("a role that cannot be fenced never gets its application started", async () => {
    const { host, port } = fenced.address;
    secret({ uri: `postgres://postgres@${host}:${port}/postgres?sslmode=disable` });
    const sidecar = await aSidecar();
    const failure = await until(() => sidecar.report()?.failures[0]);
    expect(failure).toMatchObject({ code: "LF010", final: false });
    expect(failure.message).toContain('role "postgres" cannot be fenced');
    expect(await sidecar.started()).toBe(false);
  });
});

describe("INV-7: one pod, one generation", () => {
  test("a sidecar that was restarted in place does not raise again, and says that the pod must be replaced", async () => {
    goodSecret();
    const first = await aSidecar();
    await until(() => first.started());
    // A crash: a second process of the same pod finds the Lease still naming it.
    const second = await aSidecar({ api: first.api });
    const failure = await until(() => second.report()?.failures[0]);
    expect(failure).toMatchObject({ code: "LF001", final: true, floor: 1 });
    expect(await second.started()).toBe(false);
    expect(await refused(second.port)).toBe("ECONNREFUSED");
  });

  test("neither in a database that was restored to a time before its first raise, however often it is restarted", async () => {
    goodSecret();
    const first = await aSidecar();
    await until(() => first.started());
    const { api } = first;
    await first.end();
    const admin = await fenced.connectAdmin();
    // What a restore takes away, and that the Lease still knows.
    await admin.query("DELETE FROM fence.claim WHERE holder = 'uid-1'");
    await admin.query("UPDATE fence.job SET generation = 0, holder = NULL, nonce = NULL WHERE name = $1", [fenceName]);
    await admin.end();
    api.change({ holderIdentity: "uid-1" });
    for (let life = 2; life <= 3; life++) {
      const next = await aSidecar({ api });
      await until(() => next.report()?.failures[0]?.final);
      expect(next.report()?.fences).toMatchObject([{ database: "ledger", generation: 1 }]);
      expect(await next.started()).toBe(false);
      await next.end();
      api.change({ holderIdentity: "uid-1" });
    }
    expect((await fenced.job(fenceName).row())?.generation).toBe(0);
  });
});

describe("two control planes on one fence name", () => {
  test("LF005 with the other one, its generation and the command that takes over; the application waits, nobody is disturbed", async () => {
    goodSecret();
    await fenced.job(fenceName).raise(7, { issuer: "other cluster" });
    const sidecar = await aSidecar({ generation: 2 });
    const failure = await until(() => sidecar.report()?.failures[0]);
    expect(failure).toMatchObject({ code: "LF005", final: false, floor: 7, issuer: "other cluster" });
    expect(failure.message).toContain(`FencedJob "${fenceName}" of this name is run by another control plane`);
    expect(failure.hint).toContain(
      `kubectl patch fencedjob job -n n --type merge -p '{"spec":{"takeOver":{"issuer":"other cluster","generation":7}}}'`,
    );
    expect(await sidecar.started()).toBe(false);
    expect(await fenced.job(fenceName).row()).toMatchObject({ generation: 7, holder: "uid-7" });
  });

  test("with the acceptance that spec.takeOver gives it starts", async () => {
    goodSecret();
    await fenced.job(fenceName).raise(7, { issuer: "other cluster" });
    const sidecar = await aSidecar({ generation: 8, takeOver: { issuer: "other cluster", generation: 7 } });
    await until(() => sidecar.started());
    expect(await fenced.job(fenceName).row()).toMatchObject({ generation: 8, issuer: "test" });
  });
});

describe("loss", () => {
  test("INV-3, INV-10: a superseded sidecar refuses the open transaction and new connections, counts them, and gives nothing back", async () => {
    goodSecret();
    const sidecar = await aSidecar();
    await until(() => sidecar.started());
    const client = await connect(sidecar.port);
    await client.query("BEGIN");
    await client.query("INSERT INTO written VALUES (101)");
    await fenced.job(fenceName).raise(2);
    await expect(client.query("COMMIT")).rejects.toMatchObject({ code: "LF001", severity: "FATAL" });
    expect(await refused(sidecar.port)).toBe("LF001");
    const admin = await fenced.connectAdmin();
    expect((await admin.query("SELECT FROM written WHERE generation = 101")).rowCount).toBe(0);
    expect(await sidecar.status()).toMatchObject({ rejectedWrites: 2 });
    // The Lease still names this pod: the controller hears that it must be replaced, and above which generation.
    expect(await until(() => sidecar.report()?.failures[0])).toMatchObject({ code: "LF001", final: true, floor: 2 });
    await sidecar.end();
    expect(sidecar.lastWords()).toEqual({ generation: 1, rejectedWrites: 2 });
    expect(readLease(sidecar.api.lease as RawLease).holder).toBe("uid-1");
  });

  test("a Lease that names another pod ends idle sessions with the reason", async () => {
    goodSecret();
    const sidecar = await aSidecar();
    await until(() => sidecar.started());
    const client = await connect(sidecar.port);
    const ended = told(client);
    sidecar.api.change({ holderIdentity: "uid-2" }, { "fencedjob.dev/generation": "2" });
    expect((await ended).code).toBe("LF001");
    expect((await sidecar.status()).state).toMatch(/generation 1 is over: the Lease names/);
  });

  test("INV-5: without a confirmed renewal statements are refused with LF002, and go on under the same generation when it comes back", async () => {
    goodSecret();
    const sidecar = await aSidecar();
    await until(() => sidecar.started());
    const client = await connect(sidecar.port);
    await client.query("INSERT INTO written VALUES (201)");
    sidecar.api.down = true;
    const code = await until(async () =>
      client.query("INSERT INTO written VALUES (202)").then(
        () => null,
        (error) => error.code,
      ),
    );
    expect(code).toBe("LF002");
    sidecar.api.down = false;
    await until(async () => (await client.query("INSERT INTO written VALUES (203)").catch(() => null)) !== null);
    expect((await sidecar.status()).state).toBe("owner, generation 1");
  });
});

describe("the end", () => {
  test("closes the generation in front of the release, and says so with it: nobody is left who could write (INV-3)", async () => {
    goodSecret();
    const sidecar = await aSidecar();
    await until(() => sidecar.started());
    const { jobId } = (await fenced.job(fenceName).row())!;
    await sidecar.end();
    expect(readLease(sidecar.api.lease as RawLease)).toMatchObject({ holder: null, generation: 1 });
    expect(sidecar.report()?.fences).toMatchObject([{ database: "ledger", generation: 1, closed: true }]);
    expect((await fenced.job(fenceName).row())?.closedAt).not.toBe("");
    await expect(fenced.job(fenceName).admit(jobId, 1)).rejects.toMatchObject({ code: "LF001" });
  });

  test("a close that does not succeed is told, and does not keep the Lease back", async () => {
    goodSecret();
    const sidecar = await aSidecar();
    await until(() => sidecar.started());
    const { jobId } = (await fenced.job(fenceName).row())!;
    const admin = await fenced.connectAdmin();
    await admin.query(`BEGIN; LOCK TABLE fence.gate_${jobId}_1 IN EXCLUSIVE MODE`);
    await sidecar.end();
    await admin.query("ROLLBACK");
    expect(readLease(sidecar.api.lease as RawLease).holder).toBeNull();
    expect(sidecar.report()).toMatchObject({
      fences: [{ closed: false }],
      failures: [{ code: "LF004", final: false }],
    });
  });

  test("a sidecar that lost ownership closes nothing", async () => {
    goodSecret();
    const sidecar = await aSidecar();
    await until(() => sidecar.started());
    sidecar.api.change({ holderIdentity: "uid-2" }, { "fencedjob.dev/generation": "2" });
    await until(async () => (await sidecar.status()).state.startsWith("generation 1 is over"));
    await sidecar.end();
    expect((await fenced.job(fenceName).row())?.closedAt).toBe("");
  });

  test("a pod that only closes raises, closes, tells it, gives the Lease back and ends; a Secret that comes later will do", async () => {
    await fenced.job(fenceName).raise(1, { holder: "uid-0" });
    const sidecar = await aSidecar({ generation: 2, purpose: "close" });
    await until(() => sidecar.report()?.failures[0]?.code === "LF017");
    goodSecret();
    await sidecar.running;
    expect(sidecar.closed()).toBe(true);
    expect(readLease(sidecar.api.lease as RawLease)).toMatchObject({ holder: null, generation: 2 });
    expect(sidecar.report()).toMatchObject({ failures: [], fences: [{ generation: 2, closed: true }] });
    expect(await fenced.job(fenceName).row()).toMatchObject({ generation: 2, holder: "uid-1" });
  });

  test("a database that has left the spec is raised and closed beside the work, which does not wait for it", async () => {
    const other = { ...fenced.admin, database: "other" };
    await (await fenced.connectAdmin()).query("CREATE DATABASE other");
    await install(other);
    await makeRole(other, { name: fenced.address.user });
    await fenced.job(fenceName).raise(1, { holder: "uid-0", address: { ...fenced.address, database: "other" } });
    goodSecret();
    const closes = [{ name: "old", port: 5432, secretName: "old-db", dir: join(dir, "old") }];
    const sidecar = await aSidecar({ generation: 2, closes });
    await until(() => sidecar.started());
    await until(() => sidecar.report()?.unclosed?.[0]?.code === "LF017");
    expect(sidecar.report()).toMatchObject({ failures: [], fences: [{ database: "ledger", closed: false }] });
    secret({ ...addressValues(), dbname: "other" }, "old");
    await until(() => sidecar.report()?.fences.some(({ database, closed }) => database === "old" && closed));
    expect(sidecar.report()?.unclosed).toBeUndefined();
    await sidecar.end();
  });

  test("a pod that only closes and loses the Lease ends without having closed", async () => {
    const sidecar = await aSidecar({ generation: 2, purpose: "close" });
    await until(() => sidecar.report()?.failures[0]?.code === "LF017");
    sidecar.api.change({ holderIdentity: "uid-2" }, { "fencedjob.dev/generation": "3" });
    await sidecar.running;
    expect(sidecar.closed()).toBe(false);
  });

  test("gives the Lease back only after the sessions have ended (A05)", async () => {
    goodSecret();
    const sidecar = await aSidecar();
    await until(() => sidecar.started());
    const client = await connect(sidecar.port);
    await client.query("BEGIN");
    await client.query("INSERT INTO written VALUES (301)");
    await sidecar.end();
    expect(readLease(sidecar.api.lease as RawLease)).toMatchObject({ holder: null, generation: 1 });
    await expect(client.query("COMMIT")).rejects.toThrow();
    const admin = await fenced.connectAdmin();
    expect((await admin.query("SELECT FROM written WHERE generation = 301")).rowCount).toBe(0);
    expect(sidecar.lastWords()).toEqual({ generation: 1, rejectedWrites: 0 });
  });

  test("while it waits for ownership it ends at once, without last words", async () => {
    const api = new ModelledLease(systemClock, { holder: "uid-9", generation: 9 });
    const sidecar = await aSidecar({ api });
    await until(async () => (await sidecar.status()).state === "waiting for ownership");
    const startMs = systemClock.monoMs();
    await sidecar.end();
    expect(systemClock.monoMs() - startMs).toBeLessThan(1_000);
    expect(sidecar.lastWords).toThrow();
  });
});
