/**
 * The ways to a server, each for the raise (node-postgres), for sessions and for cancels (the wire): one address must lead
 * all of them to the same server by the same rules.
 */
import { chmodSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { connect, createServer, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createSecureContext, TLSSocket } from "node:tls";
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import type { DatabaseAddress } from "../../fence/database.ts";
import { makeRole } from "../../fence/role.ts";
import { openSocket } from "../../fence/socket.ts";
import { type Certificates, makeCertificates } from "../../testing/certificates.ts";
import { type Failure, type Fenced, failure, startFenced, until } from "../../testing/fenced.ts";
import { freePort, postgresVersions } from "../../testing/postgres.ts";
import { type ProxyOfTest, serve, serveNewJob } from "../../testing/proxy.ts";
import { RawClient } from "../../testing/rawclient.ts";
import { cancelRequest } from "./cancel.ts";
import { query } from "./messages.ts";

const PASSWORD = "pässword, =";
let jobs = 0;

/** A proxy to `address`; the raise went there as well. Ends with the test. */
async function proxyTo(fenced: Fenced, change: Partial<DatabaseAddress>): Promise<ProxyOfTest> {
  const address = { ...fenced.address, ...change };
  const job = fenced.job(`upstream-${++jobs}`);
  // Time for hosts that do not answer: nobody is there to be drained.
  return await serve({ ...job, raise: () => job.raise(1, { address, drainMs: 10_000 }), address }, 1);
}

/** Who a session through the proxy is, and whether it has TLS; a cancel must reach it, too. */
async function session(fenced: Fenced, change: Partial<DatabaseAddress>): Promise<{ user: string; ssl: boolean }> {
  const proxy = await proxyTo(fenced, change);
  const client = await proxy.connect();
  const { rows } = await client.query("SELECT current_user AS user, ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()");
  const raw = await RawClient.open({ port: proxy.port });
  raw.send(query("SELECT pg_sleep(60)"));
  await until(await fenced.connectAdmin(), "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'PgSleep'");
  connect(proxy.port, "127.0.0.1").end(cancelRequest(raw.key.readInt32BE(0), raw.key.subarray(4)));
  await raw.until(() => raw.readies === 2);
  expect(raw.transcript.some((line) => line.includes("C=57014"))).toBe(true);
  await raw.end();
  return rows[0];
}

/** What both a raise and a session are told. */
async function refusals(fenced: Fenced, change: Partial<DatabaseAddress>): Promise<Failure[]> {
  const address = { ...fenced.address, ...change };
  const job = fenced.job(`upstream-${++jobs}`);
  const raise = await failure(job.raise(1, { address }));
  const proxy = await serve(job, 1, { address });
  return [raise, await failure(proxy.connect())];
}

describe.each(postgresVersions().found)("PostgreSQL %i", (version) => {
  let fenced: Fenced;
  let tls: Certificates;
  let socketDir: string;

  beforeAll(async () => {
    tls = makeCertificates();
    socketDir = mkdtempSync(join(tmpdir(), "fencedjob-socket-"));
    chmodSync(socketDir, 0o777);
    fenced = await startFenced({
      version,
      settings: {
        ssl: "on",
        ssl_cert_file: tls.path("sha384.crt"),
        ssl_key_file: tls.path("sha384.key"),
        ssl_ca_file: tls.path("ca.crt"),
        unix_socket_directories: socketDir,
      },
      hba: [
        "hostssl all by_certificate 127.0.0.1/32 cert",
        "hostssl all by_tls 127.0.0.1/32 scram-sha-256",
        "host all by_password 127.0.0.1/32 password",
        "hostnossl all by_tls 127.0.0.1/32 reject",
        "host all all 127.0.0.1/32 trust",
        "local all all trust",
      ],
    });
    for (const name of ["by_certificate", "by_tls", "by_password"]) {
      await makeRole(fenced.admin, { name, password: PASSWORD });
    }
  });
  afterAll(async () => {
    await fenced.stop();
    tls.remove();
    rmSync(socketDir, { recursive: true, force: true });
  });

  const verified = (): Partial<DatabaseAddress> => ({
    host: "localhost",
    sslmode: "verify-full",
    ca: tls.pem("ca.crt"),
  });

  test.each(["disable", "prefer", "require"] as const)(
    "channel_binding=%s with SCRAM over TLS",
    async (channelBinding) => {
      const who = await session(fenced, { ...verified(), user: "by_tls", password: PASSWORD, channelBinding });
      expect(who).toEqual({ user: "by_tls", ssl: true });
    },
  );

  test("whoever ends the TLS connection in between, with a certificate that is trusted, is found out by channel binding", async () => {
    const port = await endTls(fenced.postgres.port);
    const change: Partial<DatabaseAddress> = { ...verified(), port, user: "by_tls", password: PASSWORD };
    expect(await session(fenced, { ...change, channelBinding: "disable" })).toEqual({ user: "by_tls", ssl: true });
    for (const channelBinding of ["prefer", "require"] as const) {
      for (const error of await refusals(fenced, { ...change, channelBinding })) {
        expect(error).toMatchObject({ detail: expect.stringContaining("SCRAM channel binding check failed") });
      }
    }
  });

  /** A server that passes on what it decrypts, over a TLS connection of its own. Returns its port. */
  async function endTls(serverPort: number): Promise<number> {
    const secureContext = createSecureContext({ cert: tls.pem("server.crt"), key: tls.pem("server.key") });
    const own: DatabaseAddress = { ...fenced.address, sslmode: "require" };
    const open = new Set<Socket>();
    const server = createServer((raw) => {
      open.add(raw);
      raw.on("error", () => {});
      raw.once("data", () =>
        raw.write("S", async () => {
          const client = new TLSSocket(raw, { isServer: true, secureContext });
          const endpoint = { host: own.host, port: serverPort };
          const upstream = await openSocket(own, { endpoint, ip: own.host, tls: true }, new AbortController().signal);
          client.on("error", () => {});
          client.pipe(upstream).pipe(client);
        }),
      );
    });
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    onTestFinished(() => {
      for (const socket of open) socket.destroy();
      server.close();
    });
    return (server.address() as { port: number }).port;
  }

  test.each<[what: string, change: Partial<DatabaseAddress>, want: RegExp]>([
    ["a login without any password", {}, /demanded no login that could be bound/],
    ["a password in clear", { user: "by_password", password: PASSWORD }, /in a way that cannot be bound/],
  ])("channel_binding=require refuses %s, and says why", async (_what, change, want) => {
    for (const error of await refusals(fenced, { ...verified(), channelBinding: "require", ...change })) {
      expect(error).toMatchObject({ code: "LF016", message: expect.stringMatching(want) });
    }
  });

  test("a client certificate logs in; without it the server's refusal is told", async () => {
    const certificate = tls.pem("client.crt");
    const change: Partial<DatabaseAddress> = { ...verified(), user: "by_certificate" };
    const plain = await session(fenced, { ...change, clientCertificate: { certificate, key: tls.pem("client.key") } });
    expect(plain).toEqual({ user: "by_certificate", ssl: true });
    const encrypted = { certificate, key: tls.pem("encrypted.key"), passphrase: "secret words" };
    expect(await session(fenced, { ...change, clientCertificate: encrypted })).toEqual(plain);
    for (const error of await refusals(fenced, change)) expect(error.code).toBe("LF016");
  });

  test("sslnegotiation=direct: from PostgreSQL 17 on; before, it is said", async () => {
    const direct: Partial<DatabaseAddress> = { ...verified(), sslNegotiation: "direct" };
    if (version >= 17) {
      expect(await session(fenced, direct)).toMatchObject({ ssl: true });
      return;
    }
    for (const error of await refusals(fenced, direct)) {
      expect(error.code).toBe("LF015");
      expect(error.detail).toContain("needs PostgreSQL 17 or newer");
    }
  });

  test("a Unix socket, whatever sslmode says; one that is not there is named", async () => {
    expect(await session(fenced, { host: socketDir, sslmode: "require" })).toEqual({ user: "invoice_app", ssl: false });
    for (const error of await refusals(fenced, { host: "/nowhere" })) {
      expect(error.code).toBe("LF015");
      expect(error.message).toContain(`/nowhere/.s.PGSQL.${fenced.postgres.port}`);
    }
  });
});

describe("several hosts", () => {
  let fenced: Fenced;
  let standby: Fenced;
  beforeAll(async () => {
    fenced = await startFenced({});
    standby = await startFenced({});
    await standby.postgres.stop("fast");
    writeFileSync(join(standby.postgres.dataDir, "standby.signal"), "");
    await standby.postgres.start();
  });
  afterAll(async () => {
    await fenced.stop();
    await standby.stop();
  });

  test("unreachable, silent and standby servers are passed over; a cancel goes to the server that was found", async () => {
    const silent = createServer((socket) => void socket.on("error", () => {}));
    await new Promise<void>((resolve) => silent.listen(0, "127.0.0.1", resolve));
    onTestFinished(() => void silent.close());
    const host = "127.0.0.1";
    const who = await session(fenced, {
      port: await freePort(),
      furtherHosts: [
        { host, port: (silent.address() as { port: number }).port },
        { host, port: standby.postgres.port },
        { host, port: fenced.postgres.port },
      ],
      connectTimeoutMs: 2_000,
    });
    expect(who).toEqual({ user: "invoice_app", ssl: false });
  });

  test("target_session_attrs=any takes the first that answers, and a standby is LF013 as ever", async () => {
    const furtherHosts = [{ host: fenced.address.host, port: fenced.address.port }];
    const port = standby.postgres.port;
    for (const error of await refusals(fenced, { port, furtherHosts, targetSession: "any" })) {
      expect(error).toMatchObject({ code: "LF013" });
    }
    for (const error of await refusals(fenced, { port, furtherHosts: [{ host: "127.0.0.1", port }] })) {
      expect(error).toMatchObject({ code: "LF013", message: expect.stringContaining("is a primary") });
    }
  });

  test("a server that refuses the session is believed: no other is asked", async () => {
    const furtherHosts = [{ host: standby.address.host, port: standby.address.port }];
    const { proxy } = await serveNewJob(fenced, { address: { ...fenced.address, user: "postgres", furtherHosts } });
    expect(await failure(proxy.connect())).toMatchObject({ code: "LF010" });
  });
});
