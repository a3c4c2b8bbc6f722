/** Hostile bytes before there is a session: first messages of clients, and servers that answer a login with anything. */
import { once } from "node:events";
import { type AddressInfo, connect, createServer, type Server, type Socket } from "node:net";
import fc from "fast-check";
import { afterEach, describe, expect, test } from "vitest";
import type { DatabaseAddress } from "../../fence/database.ts";
import { sessionStartSteps } from "../../fence/enter.ts";
import { Permit } from "../../lease/permit.ts";
import { systemClock } from "../../platform/clock.ts";
import { silentLogger } from "../../platform/log.ts";
import { systemRandom } from "../../platform/random.ts";
import { Choices, mutated } from "../../testing/hostilemessages.ts";
import { RawClient } from "../../testing/rawclient.ts";
import { seededRandom } from "../../testing/seeded.ts";
import { ProtocolError } from "./framer.ts";
import {
  authenticationOk,
  BACK,
  backendKey,
  cstring,
  errorFields,
  errorMessage,
  message,
  parameterStatus,
  query,
  readyForQuery,
} from "./messages.ts";
import { type RunningProxy, startProxy } from "./proxy.ts";
import { planStartup, readFirst } from "./startup.ts";
import { NotAdmitted, openUpstream, type Upstream } from "./upstream.ts";

const MIB = 1024 * 1024;
const IDENTITY = { fenceName: "billing/run", generation: 1, holder: "uid-1", holderName: "run-1" };
const code = (number: number): Buffer => {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32BE(number);
  return bytes;
};
const startup = message(0, Buffer.concat([code(3 << 16), Buffer.from("user\0u\0database\0d\0options\0-c a=b\0\0")]));

const closing: (() => void)[] = [];
afterEach(() => {
  for (const close of closing.splice(0)) close();
});

describe("a client's first messages", () => {
  const legal = [
    startup,
    message(0, Buffer.concat([code((3 << 16) | 2), Buffer.from("user\0u\0_pq_.x\0y\0replication\0on\0\0")])),
    message(0, code(80877103)),
    message(0, code(80877104)),
    message(0, Buffer.concat([code(80877102), Buffer.alloc(8)])),
  ];

  test("changed at will, are understood, waited for or refused", () => {
    const changes = fc.array(fc.tuple(fc.nat(400), fc.nat(255)), { maxLength: 4 });
    fc.assert(
      fc.property(fc.array(fc.constantFrom(...legal), { maxLength: 4 }), changes, fc.nat(200), (parts, edits, cut) => {
        const bytes = Buffer.concat(parts);
        for (const [at, value] of edits) if (bytes.length > 0) bytes[at % bytes.length] = value;
        let rest = bytes.subarray(0, bytes.length - Math.min(cut, bytes.length >> 1));
        try {
          for (;;) {
            const first = readFirst(rest);
            if (!first) return;
            expect(first.bytes).toBeGreaterThan(0);
            if (first.kind === "startup") planStartup(first.startup, "u", "d");
            rest = rest.subarray(first.bytes);
          }
        } catch (error) {
          expect(error).toBeInstanceOf(ProtocolError);
        }
      }),
      { numRuns: 20_000 },
    );
  });

  test.each([
    ["refused", Buffer.from("GET / HTTP/1.1\r\n\r\n")],
    ["served, as its cancel request was all", message(0, Buffer.concat([code(80877102), Buffer.alloc(8)]))],
  ])("what comes behind them is thrown away once it was %s, and who stays is cut off", async (_what, first) => {
    const proxy = await startProxyOnly();
    const socket = connect({ host: "127.0.0.1", port: proxy.port });
    socket.on("error", () => {});
    const closed = new Promise<void>((resolve) => socket.once("close", () => resolve()));
    const drained = (): Promise<void> => new Promise((resolve) => socket.once("drain", () => resolve()));
    socket.resume();
    socket.write(first);
    const before = process.memoryUsage().arrayBuffers;
    const chunk = Buffer.alloc(MIB);
    let most = 0;
    for (let sent = 0; sent < 64 && !socket.destroyed; sent++) {
      if (!socket.write(chunk)) await Promise.race([drained(), closed]);
      most = Math.max(most, process.memoryUsage().arrayBuffers - before);
    }
    expect(most).toBeLessThan(16 * MIB);
    await closed;
    await proxy.close();
  });

  test("a client that says nothing does not keep the proxy from ending", async () => {
    const proxy = await startProxyOnly();
    const socket = connect({ host: "127.0.0.1", port: proxy.port, allowHalfOpen: true });
    closing.push(() => socket.destroy());
    socket.on("error", () => {});
    await once(socket, "connect");
    while (proxy.connections === 0) await new Promise((next) => setImmediate(next));
    await proxy.close();
  });
});

describe("a server's answers to a login", () => {
  const login = (kind: number, rest = ""): Buffer =>
    message(BACK.authentication, Buffer.concat([code(kind), Buffer.from(rest)]));
  const complete = message(BACK.commandComplete, cstring("SET"));
  const refused = errorMessage(BACK.error, new Map(Object.entries({ S: "ERROR", V: "ERROR", C: "42501", M: "no" })));
  const LOGINS: readonly (readonly Buffer[])[] = [
    [authenticationOk()],
    [login(3), authenticationOk()],
    [login(5, "salt"), authenticationOk()],
    [login(10, "SCRAM-SHA-256\0\0"), login(11, "r=x,s=eA==,i=4096"), login(12, "v=abcd"), authenticationOk()],
    [login(7)],
    [message(BACK.error, Buffer.alloc(1))],
    [message(BACK.error, Buffer.alloc(0))],
    [message(BACK.authentication, Buffer.alloc(0))],
    [message(BACK.negotiateVersion, Buffer.alloc(8)), authenticationOk()],
  ];
  /** Behind the login: settings, key, and the answers to the session's first statements. */
  const REST: readonly Buffer[] = [
    parameterStatus("client_encoding", "UTF8"),
    message(BACK.parameterStatus, Buffer.from("without a zero")),
    backendKey(1, Buffer.alloc(4)),
    readyForQuery(0x49),
    ...[complete, complete, complete].flatMap((tag) => [tag, readyForQuery(0x49)]),
    refused,
    readyForQuery(0x49),
  ];

  const STARTS = [
    authenticationOk(),
    ...[[], [complete], [complete], [complete], [refused]].flatMap((said) => [...said, readyForQuery(0x49)]),
  ];

  test("changed at will, admit the session or refuse it with a reason", async () => {
    let script: Buffer = Buffer.alloc(0);
    const address = await serverThat((socket) => socket.once("data", () => socket.end(script)));
    const outcomes = { admitted: 0, refused: 0 };
    await fc.assert(
      fc.asyncProperty(
        fc.constantFrom(...LOGINS),
        fc.constantFrom(0, 0.1, 0.5),
        fc.nat(),
        async (first, share, seed) => {
          script = mutated([...first, ...REST], new Choices(seededRandom(seed)), share);
          const answer = await open(address);
          if (answer instanceof NotAdmitted) {
            outcomes.refused++;
            const fields = errorFields(answer.bytes, 0, answer.bytes.length);
            // Never a failure of our own reading.
            expect(fields.get("D") ?? "").not.toMatch(/ERR_|out of range/);
          } else {
            outcomes.admitted++;
            answer.channel.destroy();
          }
        },
      ),
      { numRuns: 400 },
    );
    expect(outcomes.admitted).toBeGreaterThan(0);
    expect(outcomes.refused).toBeGreaterThan(0);
  });

  test("without end are cut off before they fill the memory", async () => {
    const flood = Buffer.concat(Array.from({ length: 1_000 }, (_, at) => parameterStatus(`p${at}`, "x".repeat(1000))));
    const address = await serverThat((socket) => {
      const more = (): void => {
        while (!socket.destroyed && socket.write(flood));
      };
      socket.once("data", more).on("drain", more);
    });
    const before = process.memoryUsage().arrayBuffers;
    expect(await open(address)).toBeInstanceOf(NotAdmitted);
    expect(process.memoryUsage().arrayBuffers - before).toBeLessThan(64 * MIB);
  });

  test("what comes in one piece with the end of the start belongs to the session, be it a part of a message", async () => {
    const notice = errorMessage(
      BACK.notice,
      new Map(Object.entries({ S: "NOTICE", V: "NOTICE", C: "00000", M: "hello" })),
    );
    const answer = [notice.subarray(9), message(BACK.commandComplete, cstring("SHOW")), readyForQuery(0x49)];
    const address = await serverThat((socket) => {
      socket.once("data", () => {
        socket.write(Buffer.concat([...STARTS, notice, notice.subarray(0, 9)]));
        socket.on("data", (chunk: Buffer) => chunk.includes("SHOW a") && socket.write(Buffer.concat(answer)));
      });
    });
    const client = await clientOf(address);
    await client.exchange(1, query("SHOW a"));
    const hello = expect.stringMatching(/^N .*hello/);
    expect(client.transcript.slice(-5)).toEqual(["Z I", hello, hello, "C SHOW·", "Z I"]);
  });

  test("a server that ends in one piece with the start has the last word", async () => {
    const fatal = errorMessage(BACK.error, new Map(Object.entries({ S: "FATAL", V: "FATAL", C: "57P01", M: "shut" })));
    const address = await serverThat((socket) =>
      socket.once("data", () => socket.end(Buffer.concat([...STARTS, fatal]))),
    );
    const client = await clientOf(address);
    await client.until(() => client.closed);
    expect(client.transcript.slice(-2)).toEqual(["Z I", expect.stringMatching(/^E S=FATAL C=57P01/)]);
  });

  test("of a huge length are refused before anything is set aside for them", async () => {
    const header = Buffer.concat([Buffer.from("R"), code(0x7fffffff)]);
    const address = await serverThat((socket) => socket.once("data", () => socket.write(header)));
    const answer = await open(address);
    expect(answer).toBeInstanceOf(NotAdmitted);
    expect((answer as NotAdmitted).message).toMatch(/LF015/);
  });
});

/** Through a proxy in front of `address`. */
async function clientOf(address: DatabaseAddress): Promise<RawClient> {
  const permit = new Permit();
  permit.extend(systemClock.monoMs() + 60_000);
  permit.open();
  const proxy = await startProxyOnly(permit);
  proxy.serve({
    address,
    jobId: 1,
    incarnation: "7/1/5/16385",
    identity: IDENTITY,
    verdict: async () => ({ kind: "ours" }),
  });
  closing.push(() => void proxy.close());
  const client = await RawClient.open({ port: proxy.port, database: address.database });
  closing.push(() => client.socket.destroy());
  return client;
}

/** It holds its clients, with bounds that pass fifty times as fast. */
const startProxyOnly = (permit = new Permit()): Promise<RunningProxy> =>
  startProxy({
    listen: { host: "127.0.0.1", port: 0 },
    permit,
    clock: { ...systemClock, after: (ms, fn) => systemClock.after(ms / 50, fn) },
    random: systemRandom,
    log: silentLogger,
    drainMs: 500,
  });

const open = (address: DatabaseAddress): Promise<Upstream | NotAdmitted> =>
  openUpstream({
    address,
    startup,
    steps: sessionStartSteps(1, IDENTITY, "7/1/5/16385"),
    clock: systemClock,
    random: systemRandom,
    timeoutMs: 20_000,
    signal: new AbortController().signal,
  }).catch((error: unknown) => {
    if (error instanceof NotAdmitted) return error;
    throw error;
  });

async function serverThat(serves: (socket: Socket) => void): Promise<DatabaseAddress> {
  const sockets = new Set<Socket>();
  const server: Server = createServer({ allowHalfOpen: true }, (socket) => {
    sockets.add(socket);
    socket.on("error", () => {}).on("close", () => sockets.delete(socket));
    serves(socket);
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  closing.push(() => {
    for (const socket of sockets) socket.destroy();
    server.close();
  });
  const { port } = server.address() as AddressInfo;
  return { host: "127.0.0.1", port, database: "d", user: "u", password: "p", sslmode: "disable" };
}
