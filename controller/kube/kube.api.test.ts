/** The Kubernetes layer against a real kube-apiserver and etcd. */
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { systemClock } from "../../platform/clock.ts";
import { type HttpClient, httpClient } from "../../platform/http.ts";
import { silentLogger } from "../../platform/log.ts";
import { systemRandom } from "../../platform/random.ts";
import { startApiServer, type TestApiServer } from "../../testing/apiserver.ts";
import { apiVersionOf, KubeApi, RESOURCES } from "./api.ts";
import { loadKubeConfig } from "./config.ts";
import { isAlreadyExists, isConflict, isGone, isInvalid, isNotFound } from "./errors.ts";
import { EventRecorder } from "./events.ts";
import { keyOf, type RawObject } from "./objects.ts";
import { Reflector } from "./reflector.ts";

let server: TestApiServer;
let client: HttpClient;
let api: KubeApi;
let namespace: string;
let tests = 0;
const ends: (() => Promise<unknown>)[] = [];

beforeAll(async () => {
  server = await startApiServer();
  const config = await loadKubeConfig({ env: {}, kubeconfigPath: server.kubeconfigPath });
  client = httpClient({ ...config, clock: systemClock });
  api = new KubeApi(client, systemClock, "fencedjob-test");
});

afterAll(async () => {
  client?.close();
  await server?.stop();
});

beforeEach(async () => {
  namespace = `test-${++tests}`;
  await server.createNamespace(namespace);
});

afterEach(async () => {
  for (const end of ends.splice(0)) await end();
});

const configMap = (
  name: string,
  data: Record<string, string> = {},
  labels: Record<string, string> = {},
): RawObject => ({
  apiVersion: "v1",
  kind: "ConfigMap",
  metadata: { name, namespace, labels },
  data,
});

function reflect(options: { pageLimit?: number; watchSeconds?: { min: number; max: number } } = {}) {
  const reflector = new Reflector<RawObject>({
    api,
    resource: RESOURCES.configMaps,
    selection: { namespace, labelSelector: "watched=yes" },
    clock: systemClock,
    random: systemRandom,
    log: silentLogger,
    ...options,
  });
  const keys: string[] = [];
  reflector.subscribe(
    (change) => [change.key],
    (key) => keys.push(key),
  );
  ends.push(() => reflector.stop());
  return { reflector, keys };
}

const watched = (name: string, data: Record<string, string> = {}) => configMap(name, data, { watched: "yes" });
const key = (name: string) => `${namespace}/${name}`;

describe("objects", () => {
  test("are created, read, replaced and deleted as raw JSON, unknown answers apart", async () => {
    const made = await api.create(RESOURCES.configMaps, configMap("a", { x: "1" }));
    const where = { namespace, name: "a" };
    expect(await api.get(RESOURCES.configMaps, where)).toEqual(made);
    const changed = await api.update(RESOURCES.configMaps, { ...made, data: { x: "2" } });
    expect(changed.data).toEqual({ x: "2" });
    await expect(api.update(RESOURCES.configMaps, { ...made, data: { x: "3" } })).rejects.toSatisfy(isConflict);
    await expect(api.create(RESOURCES.configMaps, configMap("a"))).rejects.toSatisfy(
      (error) => isAlreadyExists(error) && !isConflict(error),
    );
    await api.delete(RESOURCES.configMaps, where);
    await expect(api.get(RESOURCES.configMaps, where)).rejects.toSatisfy(isNotFound);
  });

  test("INV-6: an update of a Lease that was deleted is a conflict and creates nothing, whatever rights the caller has", async () => {
    const lease = { apiVersion: "coordination.k8s.io/v1", kind: "Lease", metadata: { name: "a", namespace }, spec: {} };
    const made: RawObject = await api.create<RawObject>(RESOURCES.leases, lease);
    const where = { namespace, name: "a" };
    await api.delete(RESOURCES.leases, where);
    await expect(api.update(RESOURCES.leases, made)).rejects.toSatisfy(isConflict);
    await expect(api.get(RESOURCES.leases, where)).rejects.toSatisfy(isNotFound);
    // What the UID guards against: with the version alone, the server makes a new Lease of it.
    const { uid: _uid, ...metadata } = made.metadata;
    const path = `/apis/coordination.k8s.io/v1/namespaces/${namespace}/leases/a`;
    const put = { method: "PUT", path, body: { ...lease, metadata }, timeoutMs: 5000 } as const;
    expect(await client.request(put)).toMatchObject({ status: 201 });
  });

  test("are deleted only if uid and version still are the ones that were read", async () => {
    const made = await api.create(RESOURCES.configMaps, configMap("a"));
    const where = { namespace, name: "a" };
    const { uid = "", resourceVersion = "" } = made.metadata;
    const other = "00000000-0000-0000-0000-000000000000";
    await expect(api.delete(RESOURCES.configMaps, where, { preconditions: { uid: other } })).rejects.toSatisfy(
      isConflict,
    );
    await api.patch(RESOURCES.configMaps, where, { data: { x: "2" } });
    await expect(
      api.delete(RESOURCES.configMaps, where, { preconditions: { uid, resourceVersion } }),
    ).rejects.toSatisfy(isConflict);
    await api.delete(RESOURCES.configMaps, where, { preconditions: { uid } });
  });

  test("a dry run checks a pod strictly, names the wrong fields and stores nothing", async () => {
    const pod = (spec: object) => ({ apiVersion: "v1", kind: "Pod", metadata: { name: "p", namespace }, spec });
    const good = { containers: [{ name: "main", image: "x" }] };
    await api.create(RESOURCES.pods, pod(good), { dryRun: true, fieldValidation: "Strict" });
    await expect(api.get(RESOURCES.pods, { namespace, name: "p" })).rejects.toSatisfy(isNotFound);
    await expect(
      api.create(RESOURCES.pods, pod({ ...good, restratPolicy: "Never" }), { dryRun: true, fieldValidation: "Strict" }),
    ).rejects.toSatisfy((error) => isInvalid(error) && /restratPolicy/.test(String(error)));
    await expect(
      api.create(RESOURCES.pods, pod({ containers: [] }), { dryRun: true, fieldValidation: "Strict" }),
    ).rejects.toMatchObject({ reason: "Invalid", causes: [{ field: "spec.containers" }] });
  });

  test("server-side apply owns its fields and meets those of others as a conflict, unless forced", async () => {
    await api.apply(RESOURCES.configMaps, { metadata: { name: "a", namespace }, data: { mine: "1" } });
    await server.kubectl(
      ["-n", namespace, "apply", "--server-side", "--field-manager=other", "-f", "-"],
      JSON.stringify({
        apiVersion: "v1",
        kind: "ConfigMap",
        metadata: { name: "a" },
        data: { theirs: "1" },
      }),
    );
    const clash = { metadata: { name: "a", namespace }, data: { mine: "2", theirs: "2" } };
    await expect(api.apply(RESOURCES.configMaps, clash)).rejects.toSatisfy(isConflict);
    const forced: RawObject = await api.apply<RawObject>(RESOURCES.configMaps, clash, { force: true });
    expect(forced.data).toEqual({ mine: "2", theirs: "2" });
  });

  test("a list of many pages has every object once, with the type that watches give", async () => {
    for (let i = 0; i < 7; i++) await api.create(RESOURCES.configMaps, watched(`c${i}`));
    const { items } = await api.list(RESOURCES.configMaps, { namespace, labelSelector: "watched=yes" }, { limit: 3 });
    expect(items.map(keyOf)).toEqual([0, 1, 2, 3, 4, 5, 6].map((i) => key(`c${i}`)));
    expect(items[0]).toMatchObject({ apiVersion: "v1", kind: "ConfigMap" });
  });
});

describe("the reflector", () => {
  test("lists in pages, follows changes, and resumes after each end of a watch without a new list", async () => {
    for (let i = 0; i < 5; i++) await api.create(RESOURCES.configMaps, watched(`c${i}`));
    const { reflector, keys } = reflect({ pageLimit: 2, watchSeconds: { min: 1, max: 1 } });
    reflector.start();
    await reflector.synced;
    expect(reflector.store.size).toBe(5);
    await api.patch(RESOURCES.configMaps, { namespace, name: "c1" }, { data: { x: "1" } });
    await expect.poll(() => reflector.store.get(key("c1"))?.data).toEqual({ x: "1" });
    await expect.poll(() => reflector.counters.watches).toBeGreaterThan(2);
    await api.delete(RESOURCES.configMaps, { namespace, name: "c2" });
    await expect.poll(() => reflector.store.get(key("c2"))).toBeUndefined();
    expect(keys.slice(0, 5).sort()).toEqual([0, 1, 2, 3, 4].map((i) => key(`c${i}`)));
    expect(keys.slice(5)).toEqual([key("c1"), key("c2")]);
    expect(reflector.counters.lists).toBe(1);
  });

  test("outlives a stop of the API server and then knows what happened meanwhile", async () => {
    await api.create(RESOURCES.configMaps, watched("a"));
    const { reflector } = reflect();
    reflector.start();
    await reflector.synced;
    await server.stopApi();
    await expect.poll(() => reflector.counters.failures).toBeGreaterThan(1);
    await server.startApi();
    await api.create(RESOURCES.configMaps, watched("b"));
    await expect.poll(() => reflector.store.get(key("b"))).toBeDefined();
    // Its watch cache is younger than the first version: what is too old to resume from is Gone.
    const old = { namespace, resourceVersion: "1", timeoutSeconds: 5, silentMs: 9000 };
    await expect(api.watch(RESOURCES.configMaps, old).next()).rejects.toSatisfy(isGone);
  });

  test("an object deleted and created again is another object", async () => {
    const old = await api.create(RESOURCES.configMaps, watched("a"));
    const { reflector, keys } = reflect();
    const uids: (string | undefined)[] = [];
    reflector.subscribe(
      ({ before, after }) => [`${before?.metadata.uid}>${after?.metadata.uid}`],
      (line) => uids.push(line),
    );
    reflector.start();
    await reflector.synced;
    await api.delete(RESOURCES.configMaps, { namespace, name: "a" });
    const fresh = await api.create(RESOURCES.configMaps, watched("a"));
    await expect.poll(() => reflector.store.get(key("a"))?.metadata.uid).toBe(fresh.metadata.uid);
    const [was, is] = [old.metadata.uid, fresh.metadata.uid];
    expect(uids).toEqual([`undefined>${was}`, `${was}>undefined`, `undefined>${is}`]);
    expect(keys).toEqual([key("a"), key("a"), key("a")]);
  });
});

describe("events", () => {
  test("are shown by kubectl describe, the same one again as a count, a long one cut", async () => {
    const recorder = new EventRecorder({
      api,
      clock: systemClock,
      random: systemRandom,
      log: silentLogger,
      controller: "fencedjob.dev/controller",
      instance: "test-pod",
    });
    const object = await api.create(RESOURCES.configMaps, configMap("a"));
    const fence = { type: "Normal", reason: "FenceRaised", action: "Raise", note: "generation 7 to 8" } as const;
    recorder.record(object, fence);
    await recorder.flush(5000);
    for (let i = 0; i < 4; i++) recorder.record(object, fence);
    recorder.record(object, { type: "Warning", reason: "WriteRefused", action: "Refuse", note: "ü".repeat(2000) });
    await recorder.flush(5000);
    expect(recorder.counters).toEqual({ sent: 3, dropped: 0, failed: 0 });
    const text = await server.kubectl(["-n", namespace, "describe", "configmap", "a"]);
    expect(text).toMatch(/Normal\s+FenceRaised\s+.*x5 over.*fencedjob.dev\/controller\s+generation 7 to 8/);
    expect(text).toMatch(/Warning\s+WriteRefused\s+.*ü…/);
    const { items } = await api.list(RESOURCES.events, { namespace });
    expect(items.map(apiVersionOfEvent)).toEqual(["events.k8s.io/v1", "events.k8s.io/v1"]);
  });

  test("that a series has outlived on the server begin anew", async () => {
    const recorder = new EventRecorder({
      api,
      clock: systemClock,
      random: systemRandom,
      log: silentLogger,
      controller: "fencedjob.dev/controller",
      instance: "test-pod",
    });
    const object = await api.create(RESOURCES.configMaps, configMap("a"));
    const text = { type: "Normal", reason: "Granted", action: "Grant", note: "to pod a" } as const;
    recorder.record(object, text);
    await recorder.flush(5000);
    const before = await api.list(RESOURCES.events, { namespace });
    for (const { metadata } of before.items) await api.delete(RESOURCES.events, metadata);
    recorder.record(object, text);
    await recorder.flush(5000);
    await recorder.flush(5000);
    const { items } = await api.list(RESOURCES.events, { namespace });
    expect(items).toMatchObject([{ reason: "Granted", series: { count: 2 } }]);
  });
});

const apiVersionOfEvent = (event: RawObject) =>
  event.apiVersion === apiVersionOf(RESOURCES.events) ? event.apiVersion : "?";
