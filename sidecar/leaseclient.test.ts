import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import type { LeaseClient, LeaseNews } from "../lease/client.ts";
import { systemClock } from "../platform/clock.ts";
import { type FaultyServer, type Handler, json, startFaultyServer } from "../testing/faultyserver.ts";
import { openLeaseClient } from "./leaseclient.ts";

let directory: string;
let server: FaultyServer;
let client: LeaseClient;

beforeEach(async () => {
  directory = await mkdtemp(path.join(tmpdir(), "fencedjob-lease-"));
  await writeFile(path.join(directory, "token"), "first\n");
  await writeFile(path.join(directory, "ca.crt"), "");
});

afterEach(async () => {
  client.close();
  await expect.poll(() => server.openSockets()).toBe(0);
  await server.stop();
  await rm(directory, { recursive: true });
});

async function serve(handler: Handler): Promise<void> {
  server = await startFaultyServer(handler);
  client = openLeaseClient({
    baseUrl: server.url,
    tokenPath: path.join(directory, "token"),
    caPath: path.join(directory, "ca.crt"),
    namespace: "billing",
    name: "invoice-run",
    clock: systemClock,
  });
}

const lease = (resourceVersion: string) => ({
  metadata: { name: "invoice-run", uid: "u", resourceVersion },
  spec: {},
  newField: 1,
});
const line = (type: string, object: object) => `${JSON.stringify({ type, object })}\n`;

async function watched(resourceVersion?: string): Promise<LeaseNews[]> {
  const news: LeaseNews[] = [];
  for await (const one of client.watch(resourceVersion, AbortSignal.timeout(5000))) news.push(one);
  return news;
}

describe("the answer to a renewal", () => {
  test.each([
    [200, lease("8"), { kind: "ok", lease: lease("8") }],
    [404, { reason: "NotFound" }, { kind: "notFound" }],
    [404, "page not found", { kind: "refused", status: 404, message: "404: page not found", retryAfterMs: 0 }],
    [409, { reason: "Conflict" }, { kind: "conflict" }],
    [400, { message: "bad time" }, { kind: "refused", status: 400, message: "400: bad time", retryAfterMs: 0 }],
    [403, "no", { kind: "refused", status: 403, message: "403: no", retryAfterMs: 0 }],
    [429, { message: "later" }, { kind: "refused", status: 429, message: "429: later", retryAfterMs: 3000 }],
    [500, { message: "etcd" }, { kind: "unknown", message: "500: etcd", sent: true }],
    [504, { message: "slow" }, { kind: "unknown", message: "504: slow", sent: true }],
  ])("%d is told apart from all others", async (status, body, want) => {
    await serve((_asked, response) => json(response, status, body, { "retry-after": status === 429 ? "3" : "" }));
    expect(await client.replace(lease("7"), 5000)).toEqual(want);
    expect(server.asked).toMatchObject([
      {
        method: "PUT",
        path: "/apis/coordination.k8s.io/v1/namespaces/billing/leases/invoice-run",
        headers: { authorization: "Bearer first" },
        body: lease("7"),
      },
    ]);
  });

  test("asked to wait for an hour, as by a gateway in front of the server, it waits a minute", async () => {
    await serve((_asked, response) => json(response, 429, {}, { "retry-after": "3600" }));
    expect(await client.get(5000)).toMatchObject({ kind: "refused", retryAfterMs: 60_000 });
  });

  test("is unknown when the connection breaks or time runs out, and the request is not sent again", async () => {
    await serve((asked, _response, nth) => nth === 1 && asked.socket.destroy());
    expect(await client.replace(lease("7"), 5000)).toMatchObject({ kind: "unknown", sent: true });
    expect(await client.replace(lease("7"), 1_000)).toMatchObject({ kind: "unknown", sent: true });
    expect(server.asked.length).toBe(2);
  });

  test("is unknown, and nothing was sent, when the token cannot be read; it works again when it can", async () => {
    await serve((_asked, response) => json(response, 200, lease("8")));
    await rm(path.join(directory, "token"));
    expect(await client.get(5000)).toMatchObject({ kind: "unknown", sent: false, message: /token/ });
    await writeFile(path.join(directory, "token"), "second");
    expect(await client.get(5000)).toMatchObject({ kind: "ok" });
    expect(server.asked.map(({ headers }) => headers.authorization)).toEqual(["Bearer second"]);
  });

  test("INV-6: without resource version and UID nothing is replaced", async () => {
    await serve(() => {});
    for (const metadata of [{ uid: "u" }, { resourceVersion: "7" }]) {
      await expect(client.replace({ metadata }, 5000)).rejects.toThrow("INV-6");
    }
    expect(server.asked).toEqual([]);
  });
});

describe("the watch", () => {
  test("asks for one Lease by name and tells its news in order", async () => {
    await serve((_asked, response) => {
      response.write(line("ADDED", lease("7")) + line("BOOKMARK", {}) + line("MODIFIED", lease("8")));
      response.end(line("DELETED", lease("9")));
    });
    expect(await watched("6")).toEqual([
      { kind: "lease", lease: lease("7") },
      { kind: "quiet" },
      { kind: "lease", lease: lease("8") },
      { kind: "deleted" },
      { kind: "ended", gone: false, message: "the server ended the watch" },
    ]);
    const [asked] = server.asked;
    expect(asked?.path).toBe("/apis/coordination.k8s.io/v1/namespaces/billing/leases");
    expect(Object.fromEntries(asked?.query ?? [])).toEqual({
      watch: "true",
      allowWatchBookmarks: "true",
      fieldSelector: "metadata.name=invoice-run",
      timeoutSeconds: "300",
      resourceVersion: "6",
    });
  });

  test.each([
    ["an expired version", (_a, response) => json(response, 410, { message: "too old" }), true],
    ["an ERROR event", (_a, response) => response.end(line("ERROR", { code: 410, message: "too old" })), true],
    ["a torn line", (_a, response) => response.end('{"type":'), true],
    ["a missing right", (_a, response) => json(response, 403, { message: "no" }), false],
    ["a broken connection", ({ socket }) => socket.destroy(), false],
  ] satisfies [string, Handler, boolean][])(
    "ends at %s and says whether to begin without a version",
    async (_name, handler, gone) => {
      await serve(handler);
      expect(await watched("6")).toEqual([{ kind: "ended", gone, message: expect.any(String) }]);
    },
  );

  test("stopped by its signal says nothing more and leaves no connection", async () => {
    await serve((_asked, response) => response.writeHead(200).write(line("ADDED", lease("7"))));
    const stop = new AbortController();
    const news: LeaseNews[] = [];
    for await (const one of client.watch(undefined, stop.signal)) {
      news.push(one);
      stop.abort();
    }
    expect(news).toEqual([{ kind: "lease", lease: lease("7") }]);
  });
});
