import { afterEach, describe, expect, test } from "vitest";
import { type FaultyServer, type Handler, json, startFaultyServer } from "../testing/faultyserver.ts";
import { systemClock } from "./clock.ts";
import { type Credentials, type HttpClient, type HttpStream, httpClient } from "./http.ts";

let server: FaultyServer;
let client: HttpClient;

async function serve(handler: Handler, credentials?: () => Credentials | Promise<Credentials>): Promise<void> {
  server = await startFaultyServer(handler);
  client = httpClient({ baseUrl: server.url, clock: systemClock, ...(credentials && { credentials }) });
}

afterEach(async () => {
  client.close();
  // Leak guard: what the client closed, the server sees closed.
  await expect.poll(() => server.openSockets()).toBe(0);
  await server.stop();
});

const call = (method: "GET" | "PUT", timeoutMs = 5000) => client.request({ method, path: "/x", timeoutMs, body: {} });
const stream = (silentMs = 5000, signal?: AbortSignal) =>
  client.stream({ path: "/x", timeoutMs: 5000, silentMs, ...(signal && { signal }) });

async function read(from: HttpStream): Promise<string[]> {
  const lines: string[] = [];
  if (from.lines) for await (const line of from.lines) lines.push(line);
  return lines;
}

describe("a request", () => {
  test("gives any status with its body, JSON parsed and text as it is", async () => {
    await serve((_asked, response, nth) => {
      if (nth === 1) json(response, 418, { a: 1 });
      else response.writeHead(200, { "content-type": "text/plain" }).end("ok");
    });
    expect(await call("PUT")).toMatchObject({ status: 418, body: { a: 1 } });
    expect(await call("GET")).toMatchObject({ status: 200, body: "ok" });
    expect(server.asked[0]).toMatchObject({ body: {}, headers: { "content-type": "application/json" } });
  });

  test("presents credentials read anew each time", async () => {
    let token = 0;
    await serve(
      (_asked, response) => json(response, 200, {}),
      () => ({ headers: { authorization: `Bearer ${++token}` } }),
    );
    await call("GET");
    await call("GET");
    expect(server.asked.map(({ headers }) => headers.authorization)).toEqual(["Bearer 1", "Bearer 2"]);
  });

  test("whose credentials never come ends at its time limit, not sent", async () => {
    await serve(
      () => {},
      () => new Promise(() => {}),
    );
    await expect(call("PUT", 50)).rejects.toMatchObject({ kind: "timeout", sent: false });
  });

  test.each([
    ["no answer", () => {}],
    ["half an answer", (_asked, response) => response.writeHead(200, { "content-length": "9" }).write("{")],
  ] satisfies [string, Handler][])("with %s in time is a timeout, perhaps done", async (_name, handler) => {
    await serve(handler);
    await expect(call("PUT", 1_000)).rejects.toMatchObject({ kind: "timeout", sent: true });
  });

  test("to a port that nobody listens on is refused, not done", async () => {
    await serve(() => {});
    const other = httpClient({ baseUrl: "http://127.0.0.1:1", clock: systemClock });
    await expect(other.request({ method: "PUT", path: "/", timeoutMs: 5000 })).rejects.toMatchObject({
      kind: "refused",
      sent: false,
    });
  });

  test("to a server without TLS that should have it fails as tls, not done", async () => {
    await serve(() => {});
    const other = httpClient({ baseUrl: server.url.replace("http:", "https:"), clock: systemClock });
    await expect(other.request({ method: "PUT", path: "/", timeoutMs: 5000 })).rejects.toMatchObject({
      kind: "tls",
      sent: false,
    });
    other.close();
  });

  test("whose connection breaks before the answer is a reset, perhaps done, and not sent again", async () => {
    await serve((asked) => asked.socket.destroy());
    await expect(call("PUT")).rejects.toMatchObject({ kind: "reset", sent: true });
    expect(server.asked.length).toBe(1);
  });

  test("on a kept connection that the server has closed is asked again if it reads, never if it writes", async () => {
    await serve((asked, response, nth) => {
      if (nth === 2 || nth === 4) asked.socket.destroy();
      else json(response, 200, { nth });
    });
    await call("GET");
    expect(await call("GET")).toMatchObject({ body: { nth: 3 } });
    // The third answer came over a connection of its own; this one takes a kept connection or a new one.
    await expect(call("PUT")).rejects.toMatchObject({ kind: "reset", sent: true });
    expect(server.asked.length).toBe(4);
  });

  test("goes over another connection after an answer of 5xx: behind the address there may be a server that works", async () => {
    await serve((_asked, response, nth) => json(response, nth === 2 ? 500 : 404, {}));
    for (let i = 0; i < 4; i++) await call("PUT");
    const [first, second, third, fourth] = server.asked.map(({ socket }) => socket);
    expect([second === first, third === second, fourth === third]).toEqual([true, false, true]);
  });

  test("waits for no others that hang, as many as runs of the controller may at once", async () => {
    await serve((asked, response) => {
      if (asked.method === "GET") json(response, 200, {});
    });
    const stop = new AbortController();
    const hang = { method: "PUT", path: "/x", timeoutMs: 5000, signal: stop.signal } as const;
    const hanging = Array.from({ length: 100 }, () => client.request(hang).catch(() => {}));
    await expect.poll(() => server.asked.length).toBeGreaterThan(60);
    expect(await call("GET", 1000)).toMatchObject({ status: 200 });
    stop.abort();
    await Promise.all(hanging);
  });

  test("stops at the caller's signal", async () => {
    await serve(() => {});
    const signal = AbortSignal.timeout(50);
    await expect(client.request({ method: "GET", path: "/", timeoutMs: 5000, signal })).rejects.toMatchObject({
      kind: "aborted",
    });
    await expect(client.request({ method: "GET", path: "/", timeoutMs: 5000, signal })).rejects.toMatchObject({
      kind: "aborted",
      sent: false,
    });
  });

  test("whose answer calls itself JSON and is none is malformed", async () => {
    await serve((_asked, response) => response.writeHead(200, { "content-type": "application/json" }).end("<html>"));
    await expect(call("GET")).rejects.toMatchObject({ kind: "malformed", sent: true });
  });
});

describe("a stream", () => {
  test("yields the same lines however the bytes are cut, through characters too", async () => {
    const bytes = Buffer.from('{"a":"ü€😀"}\n\n{"b":1}\n{"c":2}');
    await serve(async (_asked, response) => {
      response.writeHead(200);
      for (const byte of bytes) {
        response.write(Buffer.from([byte]));
        await new Promise((resolve) => setImmediate(resolve));
      }
      response.end();
    });
    expect(await read(await stream())).toEqual(['{"a":"ü€😀"}', '{"b":1}', '{"c":2}']);
  });

  test("with another status than 200 has a body and no lines", async () => {
    await serve((_asked, response) => json(response, 410, { reason: "Expired" }));
    expect(await stream()).toMatchObject({ status: 410, lines: null, body: { reason: "Expired" } });
  });

  test("that breaks yields what came and then a reset", async () => {
    await serve((asked, response) => response.writeHead(200).write("one\n", () => asked.socket.resetAndDestroy()));
    const { lines } = await stream();
    const got: string[] = [];
    await expect(
      (async () => {
        for await (const line of lines ?? []) got.push(line);
      })(),
    ).rejects.toMatchObject({ kind: "reset" });
    expect(got.length).toBeLessThan(2);
  });

  test("that falls silent is a timeout; a reader that takes its time is not", async () => {
    await serve((_asked, response) => response.writeHead(200).write("one\ntwo\n"));
    const { lines } = await stream(300);
    const got: string[] = [];
    await expect(
      (async () => {
        for await (const line of lines ?? []) {
          got.push(line);
          await systemClock.sleep(400);
        }
      })(),
    ).rejects.toMatchObject({ kind: "timeout", message: /silent for 300 ms/ });
    expect(got).toEqual(["one", "two"]);
  });

  test("that the reader leaves, or its signal ends, leaves no connection", async () => {
    await serve((_asked, response) => response.writeHead(200).write("one\n"));
    const first = await stream();
    for await (const _line of first.lines ?? []) break;
    await expect.poll(() => server.openSockets()).toBe(0);
    const stop = new AbortController();
    const second = await stream(5000, stop.signal);
    setTimeout(() => stop.abort(), 50);
    await expect(read(second)).rejects.toMatchObject({ kind: "aborted" });
    await expect.poll(() => server.openSockets()).toBe(0);
  });

  test("with a line without end is cut off", async () => {
    await serve((_asked, response) => response.writeHead(200).end("x".repeat(9 * 2 ** 20)));
    await expect(read(await stream())).rejects.toMatchObject({ kind: "malformed" });
  });
});
