/** What a server, or whoever stands in for it, may do while a socket is opened and a login is bound to it. */
import { X509Certificate } from "node:crypto";
import { createServer, type Server, Socket } from "node:net";
import { createServer as createTlsServer, TLSSocket, type TlsOptions } from "node:tls";
import { afterAll, afterEach, beforeAll, describe, expect, onTestFinished, test, vi } from "vitest";
import { systemClock } from "../platform/clock.ts";
import { type Certificates, makeCertificates } from "../testing/certificates.ts";
import { failure } from "../testing/fenced.ts";
import { certificateHash } from "./binding.ts";
import { onDatabase } from "./connection.ts";
import type { DatabaseAddress } from "./database.ts";
import { openSocket } from "./socket.ts";

let certificates: Certificates;
beforeAll(() => {
  certificates = makeCertificates();
});
afterAll(() => certificates.remove());

const servers: Server[] = [];
afterEach(() => {
  for (const server of servers.splice(0)) server.close();
});

const SSL_REQUEST_BYTES = 8;
const never = new AbortController().signal;

async function listen(server: Server): Promise<DatabaseAddress> {
  servers.push(server);
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as { port: number };
  return { host: "localhost", port, database: "d", user: "u", password: "hunter2", sslmode: "require" };
}

/** Answers the request for TLS with `answer`. */
const answering = (answer: string): Promise<DatabaseAddress> =>
  listen(
    createServer((socket) => {
      socket.on("error", () => {});
      socket.once("data", () => socket.write(answer));
    }),
  );

const tlsOptions = (more: TlsOptions = {}): TlsOptions => ({
  cert: certificates.pem("server.crt"),
  key: certificates.pem("server.key"),
  ...more,
});

const open = (address: DatabaseAddress): Promise<Socket> =>
  openSocket(address, { endpoint: address, ip: "127.0.0.1", tls: true }, never);

describe("the answer to the request for TLS", () => {
  test("with unencrypted data behind it ends the attempt", async () => {
    const address = await answering("Sdata that would pass for the server's own");
    await expect(open(address)).rejects.toThrow(/unencrypted data came behind/);
  });

  test("that is an error message is not believed, and not shown", async () => {
    const error = await failure(open(await answering("EFATAL: run this command")));
    expect(error.message).toMatch(/answers the request for SSL with an error/);
    expect(error.message).not.toContain("command");
  });

  test("no: plain under prefer, the end under require, and under prefer with channel_binding=require", async () => {
    const address = await answering("N");
    await expect(open(address)).rejects.toThrow(/does not support SSL/);
    const bound: DatabaseAddress = { ...address, sslmode: "prefer", channelBinding: "require" };
    await expect(open(bound)).rejects.toThrow(/does not support SSL/);
    const plain = await open({ ...address, sslmode: "prefer" });
    expect(plain).not.toBeInstanceOf(TLSSocket);
    plain.destroy();
  });

  test("that never comes ends with the signal, by its reason", async () => {
    const address = await answering("");
    const stop = new AbortController();
    const opening = openSocket(address, { endpoint: address, ip: "127.0.0.1", tls: true }, stop.signal);
    stop.abort(new Error("too late"));
    await expect(opening).rejects.toThrow("too late");
  });
});

test("keepalive: every 30 s of silence, as often as the address says, or never", async () => {
  const address = await answering("N");
  const set = vi.spyOn(Socket.prototype, "setKeepAlive");
  onTestFinished(() => set.mockRestore());
  for (const keepAliveIdleMs of [undefined, 7_000, 0]) {
    const plain: DatabaseAddress = {
      ...address,
      sslmode: "prefer",
      ...(keepAliveIdleMs !== undefined && { keepAliveIdleMs }),
    };
    (await open(plain)).destroy();
  }
  expect(set.mock.calls).toEqual([
    [true, 30_000],
    [true, 7_000],
    [false, 0],
  ]);
});

describe("sslnegotiation=direct", () => {
  const direct = async (options: TlsOptions): Promise<DatabaseAddress> => ({
    ...(await listen(createTlsServer(tlsOptions(options), (socket) => void socket.on("error", () => {})))),
    sslNegotiation: "direct",
  });

  test("a server that speaks PostgreSQL's protocol, and one that does not say so", async () => {
    const socket = await open(await direct({ ALPNProtocols: ["postgresql"] }));
    expect(socket).toBeInstanceOf(TLSSocket);
    socket.destroy();
    await expect(open(await direct({}))).rejects.toThrow(/does not say that it speaks PostgreSQL/);
  });

  test("the name is told unless sslsni=0", async () => {
    const names: unknown[] = [];
    const server = createTlsServer(tlsOptions({ ALPNProtocols: ["postgresql"] }), (socket) => {
      socket.on("error", () => {});
      names.push(socket.servername);
    });
    const address: DatabaseAddress = { ...(await listen(server)), sslNegotiation: "direct" };
    const told = await open(address);
    const untold = await open({ ...address, sslSni: false });
    await expect.poll(() => names.length).toBe(2);
    expect(names).toEqual(["localhost", false]);
    told.destroy();
    untold.destroy();
  });
});

describe("channel_binding=require", () => {
  /** Over TLS answers the startup message with one Authentication message, and keeps what comes back. */
  async function asking(body: Buffer): Promise<{ address: DatabaseAddress; received: () => string }> {
    let received = "";
    const head = Buffer.from([0x52, 0, 0, 0, 4 + body.length]);
    const server = createServer((raw) => {
      raw.on("error", () => {});
      raw.once("readable", () => {
        raw.read(SSL_REQUEST_BYTES);
        raw.write("S", () => {
          const secure = new TLSSocket(raw, { isServer: true, ...tlsOptions() });
          secure.on("error", () => {});
          secure.once("data", () => {
            secure.on("data", (chunk) => {
              received += chunk.toString("latin1");
            });
            secure.write(Buffer.concat([head, body]));
          });
        });
      });
    });
    return { address: { ...(await listen(server)), channelBinding: "require" }, received: () => received };
  }
  const ask = (kind: number, rest = ""): Buffer => Buffer.concat([Buffer.from([0, 0, 0, kind]), Buffer.from(rest)]);

  test.each<[what: string, body: Buffer, want: RegExp]>([
    ["the password itself", ask(3), /in a way that cannot be bound/],
    ["md5", ask(5, "salt"), /in a way that cannot be bound/],
    ["SCRAM without binding", ask(10, "SCRAM-SHA-256\0\0"), /something in between ends the TLS connection/],
    ["nothing", ask(0), /demanded no login that could be bound/],
  ])("a server that asks for %s gets nothing", async (_what, body, want) => {
    const { address, received } = await asking(body);
    const connection = { clock: systemClock, timeoutMs: 5_000, doing: "a test" };
    const error = await failure(onDatabase(address, connection, async () => {}));
    expect(error).toMatchObject({ code: "LF016", message: expect.stringMatching(want) });
    expect(received()).not.toContain("hunter2");
    expect(received()).toBe("");
  });
});

test("the hash of a binding is that of the certificate's signature; a signature without one has none", () => {
  const hash = (name: string): string | undefined =>
    certificateHash(new X509Certificate(certificates.pem(name)))?.toString("hex");
  const fingerprint = (text: string): string => text.replaceAll(":", "").toLowerCase();
  expect(hash("server.crt")).toBe(fingerprint(new X509Certificate(certificates.pem("server.crt")).fingerprint256));
  expect(hash("sha384.crt")).toHaveLength(96);
  expect(hash("ed25519.crt")).toBeUndefined();
});
