/** A real HTTP server on loopback that misbehaves as a test tells it, and counts what it is asked. */
import { once } from "node:events";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo, Socket } from "node:net";

export interface Asked {
  readonly method: string;
  readonly path: string;
  readonly query: URLSearchParams;
  readonly headers: IncomingMessage["headers"];
  /** Parsed, if there was a body. */
  readonly body: unknown;
  readonly socket: Socket;
}

export type Handler = (asked: Asked, response: ServerResponse, nth: number) => void;

export interface FaultyServer {
  readonly url: string;
  /** Everything asked so far. */
  readonly asked: Asked[];
  /** Connections open now. */
  openSockets(): number;
  stop(): Promise<void>;
}

export async function startFaultyServer(handler: Handler, host = "127.0.0.1"): Promise<FaultyServer> {
  const asked: Asked[] = [];
  const sockets = new Set<Socket>();
  const server = createServer((request, response) => {
    const chunks: Buffer[] = [];
    request.on("data", (chunk) => chunks.push(chunk));
    request.on("error", () => {});
    request.on("end", () => {
      const url = new URL(request.url ?? "", "http://localhost");
      const text = Buffer.concat(chunks).toString();
      const one: Asked = {
        method: request.method ?? "",
        path: url.pathname,
        query: url.searchParams,
        headers: request.headers,
        body: text === "" ? undefined : JSON.parse(text),
        socket: request.socket,
      };
      asked.push(one);
      handler(one, response, asked.length);
    });
  });
  server.keepAliveTimeout = 0;
  server.on("connection", (socket) => {
    sockets.add(socket);
    socket.on("error", () => {});
    socket.on("close", () => sockets.delete(socket));
  });
  server.listen(0, host);
  await once(server, "listening");
  return {
    url: `http://${host}:${(server.address() as AddressInfo).port}`,
    asked,
    openSockets: () => sockets.size,
    stop: async () => {
      for (const socket of sockets) socket.destroy();
      server.close();
      await once(server, "close");
    },
  };
}

export function json(
  response: ServerResponse,
  status: number,
  body: unknown,
  headers: Record<string, string> = {},
): void {
  response.writeHead(status, { "content-type": "application/json", ...headers });
  response.end(JSON.stringify(body));
}
