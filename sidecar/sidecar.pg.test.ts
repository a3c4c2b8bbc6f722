/** The sidecar's life against a real PostgreSQL, with its proxies in their own threads; the Lease is a modelled one. */
import { statSync } from "node:fs";
import { createServer } from "node:net";
import { join } from "node:path";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { GENERATION_ANNOTATION } from "../lease/record.ts";
import { systemClock } from "../platform/clock.ts";
import { type Fenced, failure, startFenced, told } from "../testing/fenced.ts";
import { ModelledLease } from "../testing/modelledlease.ts";
import { type SidecarOfTestOptions, Sidecars } from "../testing/sidecars.ts";
import { until } from "../testing/until.ts";
import { startWire } from "./wire/thread.ts";

let fenced: Fenced;
let sidecars: Sidecars;
let jobs = 0;

beforeAll(async () => {
  fenced = await startFenced({ version: 18 });
  const admin = await fenced.connectAdmin();
  await admin.query(`CREATE TABLE written (generation int); GRANT SELECT, INSERT ON written TO ${fenced.address.user}`);
});

afterAll(() => fenced?.stop());

beforeEach(() => {
  sidecars = new Sidecars(fenced, `n/job-${++jobs}`);
});

afterEach(() => sidecars.end());

describe("INV-4: raise before read", () => {
  test("the probe fails and who connects is held until the fence is raised; then the application is served, fenced", async () => {
    const sidecar = await sidecars.start();
    await until(() => sidecar.report()?.failures[0]?.code === "LF017");
    // As soon as it listens.
    const early = until(() => sidecars.connect(sidecar.port));
    await until(async () => (await sidecar.status()).held === 1);
    expect(await sidecar.started()).toBe(false);
    expect(sidecar.report()).toMatchObject({ fences: [], served: false });
    sidecars.goodSecret();
    await until(() => sidecar.started());
    await early;
    // It is told beside the start, which does not wait for it.
    await until(() => sidecar.report()?.fences.length === 1);
    expect(sidecar.report()).toMatchObject({
      generation: 1,
      failures: [],
      fences: [{ database: "ledger", generation: 1 }],
    });
    const client = await sidecars.connect(sidecar.port);
    await client.query("INSERT INTO written VALUES (1)");
    expect(await sidecars.job.row()).toMatchObject({ generation: 1, holder: "uid-1" });
  });

  test.each(["NotStarted", "Started"] as const)(
    "C02: an application (%s) that connects once, the moment the probe passes, is not refused in 100 runs",
    { timeout: 300_000 },
    async (application) => {
      let runs = 0;
      const inTurn = async (): Promise<void> => {
        while (runs < 100) {
          const own = new Sidecars(fenced, `n/${application}-${++runs}`);
          own.goodSecret();
          const sidecar = await own.start({ application });
          await until(() => sidecar.probe());
          await own.connect(sidecar.port);
          await own.end();
        }
      };
      await Promise.all(Array.from({ length: 4 }, inTurn));
    },
  );

  test("a Unix socket beside the port, for containers that run as any user", async () => {
    sidecars.goodSecret();
    const sidecar = await sidecars.start({ socketDir: sidecars.dir });
    await until(() => sidecar.started());
    for (const host of [sidecars.dir, "127.0.0.1"]) await sidecars.connect(sidecar.port, host);
    expect(statSync(join(sidecars.dir, `.s.PGSQL.${sidecar.port}`)).mode & 0o777).toBe(0o777);
  });

  test("a port that another process has is told, and taken when it is free", async () => {
    sidecars.goodSecret();
    const taker = createServer();
    await new Promise<void>((resolve) => taker.listen(0, "127.0.0.1", resolve));
    const { port } = taker.address() as { port: number };
    const sidecar = await sidecars.start({ port });
    await until(() => sidecar.report()?.failures[0]?.code === "LF018");
    expect(await sidecar.started()).toBe(false);
    await new Promise((resolve) => taker.close(resolve));
    await until(() => sidecar.started());
    await until(() => sidecar.report()?.failures.length === 0);
  });

  test("a role that cannot be fenced never gets its application started", async () => {
    const { host, port } = fenced.address;
    sidecars.secret({ uri: `postgres://postgres@${host}:${port}/postgres?sslmode=disable` });
    const sidecar = await sidecars.start();
    const failure = await until(() => sidecar.report()?.failures[0]);
    expect(failure).toMatchObject({ code: "LF010", final: false });
    expect(failure.message).toContain('role "postgres" cannot be fenced');
    expect(await sidecar.started()).toBe(false);
  });
});

describe("INV-7: one pod, one generation", () => {
  test("a sidecar that was restarted in place does not raise again, and says that the pod must be replaced", async () => {
    sidecars.goodSecret();
    const first = await sidecars.start();
    await until(() => first.started());
    await until(() => first.report()?.served);
    // A crash: a second process of the same pod finds the Lease still naming it.
    const second = await sidecars.start({ api: first.api });
    const failure = await until(() => second.report()?.failures[0]);
    expect(failure).toMatchObject({ code: "LF001", final: true, floor: 1 });
    expect(await second.started()).toBe(false);
    await until(async () => (await sidecars.refused(second.port)) === "LF001");
    // What the first life did counts.
    expect(second.report()?.served).toBe(true);
  });

  test("neither in a database that was restored to a time before its first raise, however often it is restarted", async () => {
    sidecars.goodSecret();
    const first = await sidecars.start();
    await until(() => first.started());
    const { api } = first;
    await first.end();
    const admin = await fenced.connectAdmin();
    // What a restore takes away, and that the Lease still knows.
    await admin.query("DELETE FROM fence.claim WHERE holder = 'uid-1'");
    await admin.query("UPDATE fence.job SET generation = 0, holder = NULL, nonce = NULL WHERE name = $1", [
      sidecars.fenceName,
    ]);
    await admin.end();
    api.change({ holderIdentity: "uid-1" });
    for (let life = 2; life <= 3; life++) {
      const next = await sidecars.start({ api });
      await until(() => next.report()?.failures[0]?.final);
      expect(next.report()?.fences).toMatchObject([{ database: "ledger", generation: 1 }]);
      expect(await next.started()).toBe(false);
      await next.end();
      api.change({ holderIdentity: "uid-1" });
    }
    expect((await sidecars.job.row())?.generation).toBe(0);
  });
});

describe("two control planes on one fence name", () => {
  test("LF005 with the other one, its generation and the command that takes over; the application waits, nobody is disturbed", async () => {
    sidecars.goodSecret();
    await sidecars.job.raise(7, { issuer: "other cluster" });
    const sidecar = await sidecars.start({ generation: 2 });
    const failure = await until(() => sidecar.report()?.failures[0]);
    expect(failure).toMatchObject({ code: "LF005", final: false, floor: 7, issuer: "other cluster" });
    expect(failure.message).toContain(`FencedJob "${sidecars.fenceName}" of this name is run by another control plane`);
    expect(failure.hint).toContain(
      `kubectl patch fencedjob job -n n --type merge -p '{"spec":{"takeOver":{"issuer":"other cluster","generation":7}}}'`,
    );
    expect(await sidecar.started()).toBe(false);
    expect(await sidecars.job.row()).toMatchObject({ generation: 7, holder: "uid-7" });
  });

  test("with the acceptance that spec.takeOver gives it starts", async () => {
    sidecars.goodSecret();
    await sidecars.job.raise(7, { issuer: "other cluster" });
    const sidecar = await sidecars.start({ generation: 8, takeOver: { issuer: "other cluster", generation: 7 } });
    await until(() => sidecar.started());
    expect(await sidecars.job.row()).toMatchObject({ generation: 8, issuer: "test" });
  });
});

describe("spec.standbys.application Started", () => {
  const aCandidate = (change: SidecarOfTestOptions = {}) => {
    const api = new ModelledLease(systemClock, { holder: "uid-9", generation: 1 });
    return sidecars.start({ application: "Started", api, ...change });
  };
  const grant = (api: ModelledLease): void => api.change({ holderIdentity: "uid-1" }, { [GENERATION_ANNOTATION]: "2" });

  test("INV-4, INV-9: a candidate's probe passes, its clients are held on both sockets, and its end counts from their first session", async () => {
    sidecars.goodSecret();
    const sidecar = await aCandidate({ socketDir: sidecars.dir });
    await until(() => sidecar.started());
    const clients = [sidecars.connect(sidecar.port), sidecars.connect(sidecar.port, sidecars.dir)];
    await until(async () => (await sidecar.status()).held === 2);
    expect((await sidecar.status()).state).toBe("waiting for ownership");
    expect(await sidecars.job.row()).toBeNull();
    sidecar.api.latencyMs = 100;
    grant(sidecar.api);
    await until(() => sidecar.report()?.generation === 2);
    expect(sidecar.report()?.served).toBe(false);
    for (const client of clients) await (await client).query("INSERT INTO written VALUES (2)");
    await until(() => sidecar.report()?.served);
    await sidecar.end();
    expect(sidecar.report()).toMatchObject({ generation: 2, served: true });
  });

  test("INV-9: the first session is told at once, by one renewal, and not only with the next one", async () => {
    sidecars.goodSecret();
    const timing = { durationMs: 60_000, renewIntervalMs: 50_000, requestTimeoutMs: 2_000, marginMs: 1_000 };
    const sidecar = await aCandidate({ timing, databases: ["ledger", "audit"] });
    sidecars.goodSecret("audit");
    sidecar.api.change({ leaseDurationSeconds: 60 });
    grant(sidecar.api);
    await until(async () => (await sidecar.status()).state === "owner, generation 2");
    await until(() => sidecar.report()?.fences.length === 2);
    const { replaces } = sidecar.api;
    for (const port of sidecar.ports) await sidecars.connect(port);
    await until(() => sidecar.report()?.served);
    expect(sidecar.api.replaces - replaces).toBe(1);
  });

  test("a success without a session is told as such", async () => {
    sidecars.goodSecret();
    const sidecar = await aCandidate();
    grant(sidecar.api);
    await until(async () => (await sidecar.status()).state === "owner, generation 2");
    await sidecar.end();
    expect(sidecar.report()).toMatchObject({ generation: 2, served: false, fences: [{ generation: 2 }] });
  });

  test("INV-6: a grant that is lost before the raise ends the wait of its clients with the reason", async () => {
    const sidecar = await aCandidate();
    await until(() => sidecar.started());
    const waiting = failure(sidecars.connect(sidecar.port));
    await until(async () => (await sidecar.status()).held === 1);
    grant(sidecar.api);
    await until(() => sidecar.report()?.failures[0]?.code === "LF017");
    sidecar.api.change({ holderIdentity: "uid-3" }, { [GENERATION_ANNOTATION]: "3" });
    expect(await waiting).toMatchObject({
      code: "LF001",
      severity: "FATAL",
      detail: expect.stringMatching(/^the Lease names/),
    });
    sidecars.goodSecret();
    expect(await sidecars.refused(sidecar.port)).toBe("LF001");
    expect(await sidecars.job.row()).toBeNull();
  });

  test("INV-7: a database that refuses the generation for good ends it, too, with its own words", async () => {
    sidecars.goodSecret();
    await sidecars.job.raise(5);
    const sidecar = await aCandidate();
    await until(() => sidecar.started());
    const waiting = failure(sidecars.connect(sidecar.port));
    await until(async () => (await sidecar.status()).held === 1);
    grant(sidecar.api);
    expect(await waiting).toMatchObject({ code: "LF001", detail: expect.stringMatching(/generation 5/) });
    expect(await until(() => sidecar.report()?.failures[0])).toMatchObject({ final: true, floor: 5 });
  });

  test("INV-7: a thread that dies before anybody was served ends the process, for the kubelet to begin anew", async () => {
    let dies: (why: string) => void = () => {};
    const sidecar = await aCandidate({
      startWire: (options) => {
        dies = options.lost;
        return startWire(options);
      },
    });
    await until(() => sidecar.started());
    const ended = failure(sidecar.running);
    dies("the wire's thread ended");
    expect((await ended).message).toBe('database "ledger": the wire\'s thread ended');
  });

  test("one that waits tries its database, leaves nothing there, and says what a grant would meet until that is mended", async () => {
    const sidecar = await aCandidate();
    const { state } = await until(async () => {
      const now = await sidecar.status();
      return now.state.includes("Secret") && now;
    });
    expect(state).toMatch(/^waiting for ownership; database "ledger": Secret "ledger-db" gives no address: /);
    sidecars.goodSecret();
    await until(async () => (await sidecar.status()).state === "waiting for ownership");
    expect(await sidecars.job.row()).toBeNull();
    grant(sidecar.api);
    await until(async () => (await sidecar.status()).state === "owner, generation 2");
  });

  test("C05: one that waits ends at once when its pod does, and its clients hear it", async () => {
    const sidecar = await aCandidate();
    await until(() => sidecar.started());
    const waiting = failure(sidecars.connect(sidecar.port));
    await until(async () => (await sidecar.status()).held === 1);
    await sidecar.end();
    expect(await waiting).toMatchObject({ code: "57P01", severity: "FATAL" });
    expect(sidecar.lease().holder).toBe("uid-9");
  });
});

describe("loss", () => {
  test("INV-3, INV-10: a superseded sidecar refuses the open transaction and new connections, counts them, and gives nothing back", async () => {
    sidecars.goodSecret();
    const sidecar = await sidecars.start();
    await until(() => sidecar.started());
    const client = await sidecars.connect(sidecar.port);
    await client.query("BEGIN");
    await client.query("INSERT INTO written VALUES (101)");
    await sidecars.job.raise(2);
    await expect(client.query("COMMIT")).rejects.toMatchObject({ code: "LF001", severity: "FATAL" });
    expect(await sidecars.refused(sidecar.port)).toBe("LF001");
    const admin = await fenced.connectAdmin();
    expect((await admin.query("SELECT FROM written WHERE generation = 101")).rowCount).toBe(0);
    expect(await sidecar.status()).toMatchObject({ rejectedWrites: 2 });
    // The Lease still names this pod: the controller hears that it must be replaced, and above which generation.
    expect(await until(() => sidecar.report()?.failures[0])).toMatchObject({ code: "LF001", final: true, floor: 2 });
    await sidecar.end();
    expect(sidecar.lastWords()).toEqual({ generation: 1, rejectedWrites: 2 });
    expect(sidecar.lease().holder).toBe("uid-1");
  });

  test("a Lease that names another pod ends idle sessions with the reason", async () => {
    sidecars.goodSecret();
    const sidecar = await sidecars.start();
    await until(() => sidecar.started());
    const client = await sidecars.connect(sidecar.port);
    const ended = told(client);
    sidecar.api.change({ holderIdentity: "uid-2" }, { "fencedjob.dev/generation": "2" });
    expect((await ended).code).toBe("LF001");
    expect((await sidecar.status()).state).toMatch(/generation 1 is over: the Lease names/);
  });

  test("INV-5: without a confirmed renewal statements are refused with LF002, and go on under the same generation when it comes back", async () => {
    sidecars.goodSecret();
    const sidecar = await sidecars.start();
    await until(() => sidecar.started());
    const client = await sidecars.connect(sidecar.port);
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
  test("gives the Lease back only after the sessions have ended (A05)", async () => {
    sidecars.goodSecret();
    const sidecar = await sidecars.start();
    await until(() => sidecar.started());
    const client = await sidecars.connect(sidecar.port);
    await client.query("BEGIN");
    await client.query("INSERT INTO written VALUES (301)");
    await sidecar.end();
    expect(sidecar.lease()).toMatchObject({ holder: null, generation: 1 });
    await expect(client.query("COMMIT")).rejects.toThrow();
    const admin = await fenced.connectAdmin();
    expect((await admin.query("SELECT FROM written WHERE generation = 301")).rowCount).toBe(0);
    expect(sidecar.lastWords()).toEqual({ generation: 1, rejectedWrites: 0 });
  });

  test("while it waits for ownership it ends at once, without last words", async () => {
    const api = new ModelledLease(systemClock, { holder: "uid-9", generation: 9 });
    const sidecar = await sidecars.start({ api });
    await until(async () => (await sidecar.status()).state === "waiting for ownership");
    const startMs = systemClock.monoMs();
    await sidecar.end();
    // As against the length of its Lease, which nobody gives it.
    expect(systemClock.monoMs() - startMs).toBeLessThan(10_000);
    expect(sidecar.lastWords).toThrow();
  });
});
