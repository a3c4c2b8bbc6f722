import { afterEach, expect, test } from "vitest";
import { type HttpClient, httpClient } from "../../platform/http.ts";
import { fastClock } from "../../testing/clocks.ts";
import { type FaultyServer, type Handler, json, startFaultyServer } from "../../testing/faultyserver.ts";
import { KubeApi, pathOf, RESOURCES } from "./api.ts";
import { isThrottled, isUnknownOutcome } from "./errors.ts";

const clock = fastClock(5);
let server: FaultyServer;
let client: HttpClient;
let api: KubeApi;

async function serve(handler: Handler): Promise<void> {
  server = await startFaultyServer(handler);
  client = httpClient({ baseUrl: server.url, clock });
  api = new KubeApi(client, clock, "test");
}

afterEach(async () => {
  client?.close();
  await server?.stop();
});

test("paths of lists, objects and subresources come from one table", () => {
  expect(pathOf(RESOURCES.pods)).toBe("/api/v1/pods");
  expect(pathOf(RESOURCES.pods, "n", "a", "status")).toBe("/api/v1/namespaces/n/pods/a/status");
  expect(pathOf(RESOURCES.fencedJobs, "n")).toBe("/apis/fencedjob.dev/v1alpha1/namespaces/n/fencedjobs");
  expect(pathOf(RESOURCES.nodes, undefined, "a")).toBe("/api/v1/nodes/a");
  expect(pathOf(RESOURCES.leases, "n", "../pods")).toBe("/apis/coordination.k8s.io/v1/namespaces/n/leases/..%2Fpods");
});

test("an empty name is refused here: it would be the whole collection", () => {
  expect(() => pathOf(RESOURCES.pods, "n", "")).toThrow("empty name");
});

test("an object that was not read from the server is not sent as an update", async () => {
  await serve(() => {});
  for (const metadata of [{ uid: "u" }, { resourceVersion: "1" }]) {
    const lease = { metadata: { name: "a", namespace: "n", ...metadata } };
    await expect(api.update(RESOURCES.leases, lease)).rejects.toThrow("needs uid and resourceVersion");
  }
  expect(server.asked).toEqual([]);
});

test("a throttled write is sent again after the time that the server asks for", async () => {
  await serve((_asked, response, nth) =>
    nth < 3 ? json(response, 429, {}, { "retry-after": "2" }) : json(response, 200, { metadata: { name: "a" } }),
  );
  const startMs = clock.monoMs();
  await api.patch(RESOURCES.pods, { namespace: "n", name: "a" }, {});
  expect(clock.monoMs() - startMs).toBeGreaterThan(3900);
  expect(server.asked.length).toBe(3);
});

test("a server that throttles longer than the call may take is not waited for", async () => {
  await serve((_asked, response) => json(response, 429, {}, { "retry-after": "60" }));
  await expect(api.get(RESOURCES.pods, { namespace: "n", name: "a" })).rejects.toSatisfy(isThrottled);
  expect(server.asked.length).toBe(1);
});

test("a server that hangs ends a write as an outcome that nobody knows, within its limit", async () => {
  await serve(() => {});
  const startMs = clock.monoMs();
  const pod = { metadata: { name: "a", namespace: "n", uid: "u", resourceVersion: "1" } };
  await expect(api.update(RESOURCES.pods, pod, { timeoutMs: 2000 })).rejects.toSatisfy(isUnknownOutcome);
  expect(clock.monoMs() - startMs).toBeLessThan(30_000);
});

test("writes name their field manager, their media type, and what they ask for besides", async () => {
  await serve((_asked, response) => json(response, 200, { metadata: { name: "a" } }));
  const pod = { metadata: { name: "a", namespace: "n", uid: "u", resourceVersion: "1" }, newField: { kept: true } };
  await api.create(RESOURCES.pods, pod, { dryRun: true, fieldValidation: "Strict" });
  await api.update(RESOURCES.pods, pod, { subresource: "status" });
  await api.patch(RESOURCES.pods, { namespace: "n", name: "a" }, { a: 1 });
  await api.apply(RESOURCES.pods, pod, { force: true });
  await api.delete(RESOURCES.pods, { namespace: "n", name: "a" }, { preconditions: { uid: "u" } });
  const seen = server.asked.map(({ method, path, query, headers, body }) => ({
    line: `${method} ${path}?${query}`,
    type: headers["content-type"],
    body,
  }));
  const one = "/api/v1/namespaces/n/pods/a";
  expect(seen).toEqual([
    {
      line: "POST /api/v1/namespaces/n/pods?fieldManager=test&dryRun=All&fieldValidation=Strict",
      type: "application/json",
      body: pod,
    },
    { line: `PUT ${one}/status?fieldManager=test`, type: "application/json", body: pod },
    { line: `PATCH ${one}?fieldManager=test`, type: "application/merge-patch+json", body: { a: 1 } },
    {
      line: `PATCH ${one}?fieldManager=test&force=true`,
      type: "application/apply-patch+yaml",
      body: { apiVersion: "v1", kind: "Pod", ...pod },
    },
    {
      line: `DELETE ${one}?`,
      type: "application/json",
      body: { apiVersion: "v1", kind: "DeleteOptions", preconditions: { uid: "u" } },
    },
  ]);
});
