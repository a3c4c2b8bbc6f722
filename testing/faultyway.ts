/**
 * A way to a real API server that misbehaves as a test tells it: a server of its own for TLS, which passes each request on, with
 * its token, and each answer back.
 */
import { once } from "node:events";
import type http from "node:http";
import type { IncomingMessage, ServerResponse } from "node:http";
import https from "node:https";
import { type AddressInfo, createServer, type Socket } from "node:net";
import { systemClock } from "../platform/clock.ts";
import type { TestApiServer } from "./apiserver.ts";
import { makeCertificates } from "./certificates.ts";

export interface Passing {
  readonly method: string;
  readonly path: string;
  /** Of its connection: the first one is 1. */
  readonly connection: number;
  /** Of all requests, counted from 1. */
  readonly nth: number;
}

export type Fault =
  /** Its answer comes so much later. */
  | { readonly kind: "late"; readonly ms: number }
  /** The API server never hears of it. */
  | { readonly kind: "instead"; readonly status: number; readonly headers?: Readonly<Record<string, string>> }
  /** It is done, and its connection breaks before the answer. */
  | { readonly kind: "unanswered" }
  /** It comes to the API server so much later, also when the sender has given up. */
  | { readonly kind: "behind"; readonly ms: number }
  /** It comes there twice, as from a proxy that repeats; the second answer is passed back. */
  | { readonly kind: "twice" };

export interface FaultyWay {
  readonly url: string;
  readonly caPem: string;
  /** Of everything that passes from now on; null: nothing is wrong. */
  fault: (request: Passing) => Fault | null;
  /** From the opening of a connection until the handshake of TLS begins. */
  handshakeMs: number;
  readonly passed: readonly Passing[];
  connections(): number;
  /** Breaks the connections that are there. */
  cut(): void;
  stop(): Promise<void>;
}

export async function startFaultyWay(server: Pick<TestApiServer, "url" | "caPem">): Promise<FaultyWay> {
  const certificates = makeCertificates();
  const { hostname, port } = new URL(server.url);
  const agent = new https.Agent({ keepAlive: true, ca: server.caPem });
  const passed: Passing[] = [];
  const sockets = new Map<number, Socket>();
  let opened = 0;

  const ask = ({ method, url, headers }: IncomingMessage, body: Buffer): http.ClientRequest =>
    https
      .request({ agent, hostname, port, method, path: url, headers: { ...headers, host: `${hostname}:${port}` } })
      .end(body);
  const handle = async (request: IncomingMessage, response: ServerResponse): Promise<void> => {
    const { method = "", url: path = "", socket } = request;
    const passing = { method, path, connection: byPort.get(socket.remotePort ?? 0) ?? 0, nth: passed.length + 1 };
    passed.push(passing);
    const fault = way.fault(passing);
    const body = Buffer.concat(await request.toArray());
    if (fault?.kind === "instead") {
      response.writeHead(fault.status, { "content-type": "application/json", ...fault.headers });
      response.end(JSON.stringify({ kind: "Status", message: "the way is faulty", reason: "InternalError" }));
      return;
    }
    if (fault?.kind === "behind") await systemClock.sleep(fault.ms);
    if (fault?.kind === "twice") {
      const [first] = (await once(ask(request, body), "response")) as [IncomingMessage];
      first.resume();
    }
    const onward = ask(request, body);
    const [answer] = (await once(onward, "response")) as [IncomingMessage];
    response.once("close", () => onward.destroy());
    if (fault?.kind === "late") await systemClock.sleep(fault.ms);
    if (fault?.kind === "unanswered") return void socket.destroy();
    response.writeHead(answer.statusCode ?? 0, answer.headers);
    // A watch says that it is open before anything happens.
    response.flushHeaders();
    answer.pipe(response);
  };
  const inner = https.createServer(
    { cert: certificates.pem("server.crt"), key: certificates.pem("server.key") },
    (request, response) => void handle(request, response).catch(() => request.socket.destroy()),
  );
  const byPort = new Map<number, number>();
  const front = createServer((socket) => {
    const connection = ++opened;
    sockets.set(connection, socket);
    if (socket.remotePort !== undefined) byPort.set(socket.remotePort, connection);
    socket.on("error", () => {});
    socket.once("close", () => sockets.delete(connection));
    systemClock.after(way.handshakeMs, () => inner.emit("connection", socket));
  });
  front.listen(0, "127.0.0.1");
  await once(front, "listening");

  const way: FaultyWay = {
    url: `https://localhost:${(front.address() as AddressInfo).port}`,
    caPem: certificates.pem("ca.crt"),
    fault: () => null,
    handshakeMs: 0,
    passed,
    connections: () => opened,
    cut: () => {
      for (const socket of sockets.values()) socket.destroy();
    },
    stop: async () => {
      way.cut();
      front.close();
      await once(front, "close");
      agent.destroy();
      certificates.remove();
    },
  };
  return way;
}
