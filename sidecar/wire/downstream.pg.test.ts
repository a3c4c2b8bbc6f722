/** How clients reach the proxy: TLS, direct TLS and cancels over either, Unix sockets, and those who only begin. */
import { execFile } from "node:child_process";
import { existsSync, mkdtempSync, rmSync, statSync, writeFileSync } from "node:fs";
import { connect, createServer, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type ConnectionOptions, connect as connectTls } from "node:tls";
import { promisify } from "node:util";
import pg from "pg";
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import { systemClock } from "../../platform/clock.ts";
import { type Certificates, makeCertificates } from "../../testing/certificates.ts";
import { type Fenced, failure, startFenced, until } from "../../testing/fenced.ts";
import { freePort } from "../../testing/postgres.ts";
import { type ProxyOfTest, serveNewJob } from "../../testing/proxy.ts";
import { RawClient } from "../../testing/rawclient.ts";
import { cancelRequest } from "./cancel.ts";
import { message, query } from "./messages.ts";
import type { ProxyConfig } from "./proxy.ts";

const run = promisify(execFile);
let fenced: Fenced;
let certificates: Certificates;
beforeAll(async () => {
  certificates = makeCertificates();
  fenced = await startFenced();
});
afterAll(async () => {
  await fenced.stop();
  certificates.remove();
});

async function aProxy(options: Partial<ProxyConfig> = {}): Promise<ProxyOfTest> {
  return (await serveNewJob(fenced, options)).proxy;
}

const withTls = (): Promise<ProxyOfTest> =>
  aProxy({ tls: { certificate: certificates.pem("server.crt"), key: certificates.pem("server.key") } });

/** What psql prints, or why it failed. */
async function psql(connection: string, sql = "SELECT 'it ' || 'works'"): Promise<string> {
  const env = { ...process.env, PGCONNECT_TIMEOUT: "10" };
  return await run("psql", ["-XAtq", "-c", sql, `user=me dbname=postgres ${connection}`], { env }).then(
    ({ stdout }) => stdout.trim(),
    (error: { stderr: string }) => error.stderr,
  );
}

const SSL_REQUEST = message(0, Buffer.from([0x04, 0xd2, 0x16, 0x2f]));
const GSS_REQUEST = message(0, Buffer.from([0x04, 0xd2, 0x16, 0x30]));

async function connected(port: number): Promise<Socket> {
  const socket = connect({ port, host: "127.0.0.1" });
  socket.on("error", () => {});
  onTestFinished(() => void socket.destroy());
  await new Promise<void>((resolve) => socket.once("connect", () => resolve()));
  return socket;
}

/** Everything up to the end of the connection. */
async function rest(socket: Socket): Promise<string> {
  let text = "";
  socket.on("data", (chunk) => {
    text += chunk.toString("latin1");
  });
  if (!socket.closed) await new Promise<void>((resolve) => socket.once("close", () => resolve()));
  return text;
}

async function secured(socket: Socket, options: ConnectionOptions = {}): Promise<Socket> {
  const secure = connectTls({ socket, ca: certificates.pem("ca.crt"), servername: "localhost", ...options });
  secure.on("error", () => {});
  await new Promise<void>((resolve, reject) => secure.once("secureConnect", () => resolve()).once("close", reject));
  return secure;
}

describe("TLS", () => {
  test("for who asks for it, verified by libpq; who does not ask is served as well", async () => {
    const { port } = await withTls();
    const verified = `host=localhost port=${port} sslmode=verify-full sslrootcert=${certificates.path("ca.crt")}`;
    expect(await psql(verified)).toBe("it works");
    expect(await psql(`host=localhost port=${port} sslmode=disable`)).toBe("it works");
    expect(await psql(`${verified.replace("ca.crt", "other.crt")}`)).toMatch(/certificate verify failed/);
  });

  test("B06: without a certificate prefer goes on without TLS, require fails with an explanation", async () => {
    const { port } = await aProxy();
    expect(await psql(`host=localhost port=${port} sslmode=prefer channel_binding=prefer`)).toBe("it works");
    expect(await psql(`host=localhost port=${port} sslmode=require`)).toMatch(/server does not support SSL/);
    expect(await psql(`host=localhost port=${port} channel_binding=require`)).toMatch(/channel binding required/);
  });

  test("B06: the client's channel binding is its own TLS connection's, never the server's", async () => {
    const { port } = await withTls();
    expect(await psql(`host=localhost port=${port} sslmode=require channel_binding=prefer`)).toBe("it works");
    expect(await psql(`host=localhost port=${port} sslmode=require channel_binding=require`)).toMatch(
      /channel binding required, but server authenticated client without channel binding/,
    );
  });

  test("direct: with ALPN only, as PostgreSQL demands", async () => {
    const { port } = await withTls();
    const ssl = { ca: certificates.pem("ca.crt") };
    const direct: pg.ClientConfig = {
      host: "localhost",
      port,
      user: "me",
      database: "postgres",
      ssl,
      sslnegotiation: "direct",
    };
    const client = new pg.Client(direct);
    await client.connect();
    // More than fits into one record, both ways.
    const big = "x".repeat(3_000_000);
    expect((await client.query("SELECT $1::text AS big", [big])).rows[0].big).toBe(big);
    await client.end();
    const silent = await secured(await connected(port));
    expect(await rest(silent)).toMatch(/08P01.*direct TLS needs the ALPN protocol postgresql/);
    const plain = await aProxy();
    const refused = await connected(plain.port);
    refused.write(Buffer.from([0x16, 3, 1, 0, 5]));
    expect(await rest(refused)).toMatch(/08P01.*TLS is not spoken here/);
  });

  test("unencrypted data behind the request for it is refused, and never becomes a message", async () => {
    const { port } = await withTls();
    const socket = await connected(port);
    socket.write(Buffer.concat([SSL_REQUEST, query("SELECT 1")]));
    expect(await rest(socket)).toMatch(/^E.*08P01.*unencrypted data came behind/);
  });

  test("GSS encryption is declined, and TLS can still be asked for", async () => {
    const { port } = await withTls();
    const socket = await connected(port);
    const answers: string[] = [];
    for (const request of [GSS_REQUEST, SSL_REQUEST]) {
      const answer = new Promise<Buffer>((resolve) => socket.once("data", resolve));
      socket.write(request);
      answers.push(String(await answer));
    }
    expect(answers).toEqual(["N", "S"]);
    await secured(socket);
  });

  test.each(["plain", "after a refused request for TLS", "over TLS", "over direct TLS"])(
    "a cancel request %s reaches the session",
    async (how) => {
      const { port } = how.startsWith("over") ? await withTls() : await aProxy();
      const raw = await RawClient.open({ port });
      raw.send(query("SELECT pg_sleep(60)"));
      await until(
        await fenced.connectAdmin(),
        "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'PgSleep'",
      );
      let socket = await connected(port);
      if (how === "over direct TLS") socket = await secured(socket, { ALPNProtocols: ["postgresql"] });
      else if (how !== "plain") {
        const answer = new Promise<Buffer>((resolve) => socket.once("data", resolve));
        socket.write(SSL_REQUEST);
        expect(String(await answer)).toBe(how === "over TLS" ? "S" : "N");
        if (how === "over TLS") socket = await secured(socket);
      }
      socket.write(cancelRequest(raw.key.readInt32BE(0), raw.key.subarray(4)));
      await raw.until(() => raw.readies === 2);
      expect(raw.transcript.at(-2)).toContain("C=57014");
      // The proxy ends its side, as PostgreSQL does.
      expect(await rest(socket)).toBe("");
      await raw.end();
    },
  );
});

describe("Unix sockets", () => {
  function aDirectory(): string {
    const dir = mkdtempSync(join(tmpdir(), "fencedjob-listen-"));
    onTestFinished(() => rmSync(dir, { recursive: true }));
    return dir;
  }

  test("beside TCP, found by node-postgres and by libpq; its owner's alone; gone at the end", async () => {
    const dir = aDirectory();
    const port = await freePort();
    const proxy = await aProxy({ alsoListen: [{ host: dir, port }] });
    const path = join(dir, `.s.PGSQL.${port}`);
    expect(statSync(path).mode & 0o777).toBe(0o600);
    const client = await proxy.connect({ host: dir, port });
    const big = "x".repeat(3_000_000);
    expect((await client.query("SELECT $1::text AS big", [big])).rows[0].big).toBe(big);
    expect(await psql(`host=${dir} port=${port}`)).toBe("it works");
    expect(await psql(`host=127.0.0.1 port=${proxy.port}`)).toBe("it works");
    await proxy.stop();
    expect(existsSync(path)).toBe(false);
  });

  test("open to everybody only when that is said", async () => {
    const dir = aDirectory();
    await aProxy({ listen: { host: dir, port: 5432, socketMode: 0o777 } });
    expect(statSync(join(dir, ".s.PGSQL.5432")).mode & 0o777).toBe(0o777);
  });

  test("a file whose process is gone is replaced; one that is served, or is no socket, is not", async () => {
    const dir = aDirectory();
    const path = (port: number): string => join(dir, `.s.PGSQL.${port}`);
    // A child that is killed cannot remove its socket.
    const leaves = `require("net").createServer().listen(${JSON.stringify(path(1))}, () => process.kill(process.pid, "SIGKILL"))`;
    await run(process.execPath, ["-e", leaves]).catch(() => {});
    expect(statSync(path(1)).isSocket()).toBe(true);
    const proxy = await aProxy({ listen: { host: dir, port: 1 } });
    await proxy.connect({ host: dir, port: 1 });

    const served = createServer();
    await new Promise<void>((resolve) => served.listen(path(2), resolve));
    onTestFinished(() => void served.close());
    expect((await failure(aProxy({ listen: { host: dir, port: 2 } }))).code).toBe("EADDRINUSE");
    writeFileSync(path(3), "not a socket");
    expect((await failure(aProxy({ listen: { host: dir, port: 3 } }))).code).toBe("EADDRINUSE");
    expect(statSync(path(3)).isFile()).toBe(true);
  });

  test("when the second place cannot be had, the first is given back", async () => {
    const port = await freePort();
    const nowhere = { host: "/nowhere", port };
    await failure(aProxy({ listen: { host: "127.0.0.1", port }, alsoListen: [nowhere] }));
    await aProxy({ listen: { host: "127.0.0.1", port } });
  });

  test("one that is bound, and whose mode cannot be set, is given back, too", async () => {
    const place = { host: aDirectory(), port: 1 };
    await failure(aProxy({ listen: { ...place, socketMode: -1 } }));
    await aProxy({ listen: place });
  });
});

describe("who only begins", () => {
  test("a startup message without a user is refused as PostgreSQL does", async () => {
    const { port } = await aProxy();
    const socket = await connected(port);
    socket.write(message(0, Buffer.concat([Buffer.from([0, 3, 0, 0]), Buffer.from("database\0postgres\0\0")])));
    expect(await rest(socket)).toMatch(/28000.*no PostgreSQL user name specified/);
  });

  test("does not hold up the end", async () => {
    // The proxy's own bound never comes.
    const never = {
      ...systemClock,
      after: (ms: number, fn: () => void) => systemClock.after(ms < 10_000 ? ms : 1e9, fn),
    };
    const { port, proxy } = await aProxy({ clock: never });
    const socket = await connected(port);
    await expect.poll(() => proxy.connections).toBe(1);
    await proxy.close();
    expect(await rest(socket)).toBe("");
  });

  test.each(["nothing", "a byte now and then", "a TLS handshake that does not end"])(
    "with %s, is cut off in time",
    async (what) => {
      // Time passes a hundred times as fast for the proxy's own bounds.
      const clock = { ...systemClock, after: (ms: number, fn: () => void) => systemClock.after(ms / 100, fn) };
      const tls = { certificate: certificates.pem("server.crt"), key: certificates.pem("server.key") };
      const { port, proxy } = await aProxy({ clock, tls });
      const socket = await connected(port);
      if (what !== "nothing")
        socket.write(what.startsWith("a TLS") ? Buffer.from([0x16, 3, 1, 1, 0]) : Buffer.from([0]));
      expect(await rest(socket)).toBe("");
      await expect.poll(() => proxy.connections).toBe(0);
    },
  );
});
