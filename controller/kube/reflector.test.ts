/** The faults that were measured on a client library's informer (A–G), and more, over real sockets. */
import type { ServerResponse } from "node:http";
import { afterEach, expect, test } from "vitest";
import type { Clock } from "../../platform/clock.ts";
import { type HttpClient, httpClient } from "../../platform/http.ts";
import { silentLogger } from "../../platform/log.ts";
import { systemRandom } from "../../platform/random.ts";
import { fastClock } from "../../testing/clocks.ts";
import { type Asked, type FaultyServer, json, startFaultyServer } from "../../testing/faultyserver.ts";
import { KubeApi, RESOURCES } from "./api.ts";
import type { RawObject } from "./objects.ts";
import { Reflector } from "./reflector.ts";

let clock: Clock;
let server: FaultyServer;
let client: HttpClient;
let reflector: Reflector<RawObject>;
let keys: string[];

interface Answers {
  /** The version that the server counts at; by default far on. */
  version?: () => number;
  list: (response: ServerResponse, nth: number, asked: Asked) => void;
  watch: (response: ServerResponse, nth: number, asked: Asked) => void;
}

/**
 * Starts a server with these answers and a reflector on it; `nth` counts lists and watches apart, from 1. The clock runs
 * `factor` times faster, time limits too: high only where a test waits for long.
 */
async function reflect(answers: Answers, { silentMs = 60_000, factor = 5 } = {}): Promise<void> {
  clock = fastClock(factor);
  const counts = { list: 0, watch: 0 };
  server = await startFaultyServer((asked, response) => {
    if (isVersion(asked)) return list(response, answers.version?.() ?? 1e6);
    const kind = asked.query.has("watch") ? "watch" : "list";
    answers[kind](response, ++counts[kind], asked);
    if (kind === "watch" && !response.headersSent) response.flushHeaders();
  });
  client = httpClient({ baseUrl: server.url, clock });
  reflector = new Reflector({
    api: new KubeApi(client, clock, "test"),
    resource: RESOURCES.pods,
    clock,
    random: systemRandom,
    log: silentLogger,
    silentMs,
  });
  keys = [];
  reflector.subscribe(
    ({ key }) => [key],
    (key) => keys.push(key),
  );
  reflector.start();
}

afterEach(async () => {
  await reflector.stop();
  client.close();
  await expect.poll(() => server.openSockets()).toBe(0);
  await server.stop();
});

const pod = (name: string, version: number, uid = `uid-${name}`, more: object = {}) => ({
  metadata: { name, namespace: "n", uid, resourceVersion: String(version), ...more },
  newField: { kept: true },
});
const list = (response: ServerResponse, version: number, ...items: object[]) =>
  json(response, 200, { kind: "PodList", metadata: { resourceVersion: String(version) }, items });
const line = (type: string, object: object) => `${JSON.stringify({ type, object })}\n`;
const bookmark = (version: number) => line("BOOKMARK", { metadata: { resourceVersion: String(version) } });
const watches = () => server.asked.filter(({ query }) => query.has("watch"));
const isVersion = ({ query }: Asked): boolean => query.get("limit") === "1";
const lists = () => server.asked.filter((asked) => !asked.query.has("watch") && !isVersion(asked));
const until = (condition: () => unknown) => expect.poll(condition);
const synced = (name: string) => until(() => reflector.store.get(`n/${name}`)).toBeDefined();

test("every watch asks for bookmarks and for an end that it draws itself", async () => {
  await reflect({
    list: (response) => list(response, 5),
    watch: (response, nth) => {
      response.write(bookmark(5 + nth));
      response.end();
    },
  });
  await until(() => watches().length).toBeGreaterThan(3);
  for (const { query } of watches()) {
    expect(query.get("allowWatchBookmarks")).toBe("true");
    expect(Number(query.get("timeoutSeconds"))).toBeGreaterThanOrEqual(300);
    expect(Number(query.get("timeoutSeconds"))).toBeLessThanOrEqual(600);
  }
  expect(new Set(watches().map(({ query }) => query.get("timeoutSeconds"))).size).toBeGreaterThan(1);
  expect(
    watches()
      .map(({ query }) => query.get("resourceVersion"))
      .slice(0, 3),
  ).toEqual(["5", "6", "7"]);
  expect(lists().length).toBe(1);
});

test("A: a socket reset in mid-watch resumes where it was, and misses nothing", async () => {
  await reflect({
    list: (response) => list(response, 5, pod("a", 4)),
    watch: (response, nth, { socket, query }) => {
      if (nth === 1) response.write(line("ADDED", pod("b", 8)), () => setTimeout(() => socket.resetAndDestroy(), 20));
      else if (query.get("resourceVersion") === "8") response.write(line("ADDED", pod("c", 9)));
    },
  });
  await synced("c");
  expect(keys).toEqual(["n/a", "n/b", "n/c"]);
  expect(lists().length).toBe(1);
});

test("A15: a server whose etcd was restored is listed anew, though it would take the old version for one that is to come", async () => {
  await reflect({
    list: (response, nth) => list(response, nth === 1 ? 50 : 7, pod(nth === 1 ? "a" : "b", 4)),
    watch: (_response, nth, { socket }) => {
      if (nth === 1) setTimeout(() => socket.resetAndDestroy(), 20);
    },
    version: () => 7,
  });
  await synced("b");
  expect(reflector.store.get("n/a")).toBeUndefined();
});

test("A15: so it is when a watch that stayed open tells of a version before its own", async () => {
  await reflect({
    list: (response, nth) => list(response, nth === 1 ? 50 : 7, pod(nth === 1 ? "a" : "b", 4)),
    watch: (response, nth) => {
      if (nth === 1) response.write(bookmark(7));
    },
  });
  await synced("b");
});

test("A: a list that answers 500 is tried until it works", async () => {
  await reflect({
    list: (response, nth) => (nth < 4 ? json(response, 500, { message: "etcd" }) : list(response, 5, pod("a", 4))),
    watch: () => {},
  });
  await reflector.synced;
  expect(reflector.store.size).toBe(1);
  expect(lists().length).toBe(4);
});

test("B: a watch that falls silent is given up each time after the same bound, and the gap is closed by a list", async () => {
  const atMs: number[] = [];
  await reflect(
    {
      list: (response, nth) => list(response, nth, ...(nth < 3 ? [] : [pod("missed", 2)])),
      watch: (response, nth) => {
        atMs.push(clock.monoMs());
        response.write(bookmark(nth));
      },
    },
    { silentMs: 10_000, factor: 20 },
  );
  await until(() => atMs.length).toBeGreaterThanOrEqual(5);
  expect(reflector.store.get("n/missed")).toBeDefined();
  const gapsMs = atMs.slice(1).map((ms, i) => ms - (atMs[i] ?? 0));
  // The bound of 10 s, a pause of about 1 s, and what a loaded machine adds to one or the other, 20-fold; but no doubling.
  for (const gapMs of gapsMs) expect(gapMs).toBeGreaterThan(10_000);
  expect(Math.min(...gapsMs.slice(2))).toBeLessThan(40_000);
});

test("C: deleted and created again while nobody looked is a deletion and a creation, for subscribers too", async () => {
  await reflect({
    list: (response, nth) => list(response, nth * 10, pod("a", nth * 10, `uid-${nth}`)),
    watch: (response, nth) => {
      if (nth === 1) setTimeout(() => response.end(line("ERROR", { code: 410, reason: "Expired" })), 100);
    },
  });
  const seen: string[] = [];
  reflector.subscribe(
    ({ before, after }) => [`${before?.metadata.uid} to ${after?.metadata.uid}`],
    (text) => seen.push(text),
  );
  await until(() => seen).toEqual(["undefined to uid-1", "uid-1 to undefined", "undefined to uid-2"]);
});

test("D: a subscriber that throws is not the end of the process, nor of the others", async () => {
  const rejected: unknown[] = [];
  const onRejection = (reason: unknown) => rejected.push(reason);
  process.on("unhandledRejection", onRejection);
  await reflect({
    list: (response) => list(response, 5, pod("a", 4), pod("b", 5)),
    watch: (response, nth) => nth === 1 && response.write(line("ADDED", pod("c", 6))),
  });
  const late: string[] = [];
  reflector.subscribe(
    () => {
      throw new Error("subscriber");
    },
    () => {},
  );
  reflector.subscribe(
    ({ key }) => [key],
    (key) => late.push(key),
  );
  await until(() => late).toEqual(["n/a", "n/b", "n/c"]);
  expect(rejected).toEqual([]);
  process.off("unhandledRejection", onRejection);
});

test("D: a line that is no JSON leads to a new list, so that its change is not lost", async () => {
  await reflect({
    list: (response, nth) => list(response, nth * 10, ...(nth === 1 ? [] : [pod("torn", 11)])),
    watch: (response, nth) => nth === 1 && response.write('{"type":"ADDED","object":{"meta\n'),
  });
  await synced("torn");
  expect(lists().length).toBe(2);
});

test("E: stopped during the first list, it opens no watch and delivers nothing", async () => {
  let answer = (): void => {};
  await reflect({
    list: (response) => {
      answer = () => list(response, 5, pod("a", 4));
    },
    watch: () => {},
  });
  await until(() => lists().length).toBe(1);
  const stopped = reflector.stop();
  answer();
  await stopped;
  await expect(reflector.synced).rejects.toThrow("stopped before the first list");
  await clock.sleep(5000);
  expect(watches()).toEqual([]);
  expect(keys).toEqual([]);
});

test("F, G: times stay strings and unknown fields stay, from list and watch alike", async () => {
  const creationTimestamp = "2026-11-29T13:02:11Z";
  await reflect({
    list: (response) => list(response, 5, pod("a", 4, "uid", { creationTimestamp })),
    watch: (response, nth) => nth === 1 && response.write(line("ADDED", pod("b", 6, "uid", { creationTimestamp }))),
  });
  await synced("b");
  for (const key of ["n/a", "n/b"]) {
    expect(reflector.store.get(key)).toMatchObject({ newField: { kept: true }, metadata: { creationTimestamp } });
  }
});

test.each([
  ["as the answer to a watch", (response: ServerResponse) => json(response, 410, { reason: "Expired" })],
  ["as an ERROR event", (response: ServerResponse) => response.end(line("ERROR", { code: 410, reason: "Expired" }))],
])("410 %s leads to a new list, which delivers every key and finds what was deleted", async (_name, gone) => {
  await reflect({
    list: (response, nth) => list(response, nth * 10, pod("stays", 4), ...(nth === 1 ? [pod("goes", 5)] : [])),
    watch: (response, nth) => nth === 1 && gone(response),
  });
  await until(() => watches().map(({ query }) => query.get("resourceVersion"))).toEqual(["10", "20"]);
  expect(keys).toEqual(["n/stays", "n/goes", "n/stays", "n/goes"]);
  expect(reflector.store.list().map(({ metadata }) => metadata.name)).toEqual(["stays"]);
});

test("a list whose pages grow too old begins anew and leaves nothing half", async () => {
  await reflect({
    list: (response, nth, { query }) => {
      if (query.has("continue")) json(response, 410, { reason: "Expired" });
      else if (nth === 1) json(response, 200, { metadata: { continue: "2" }, items: [pod("half", 1)] });
      else list(response, 9, pod("whole", 2));
    },
    watch: () => {},
  });
  await reflector.synced;
  expect(reflector.store.list().map(({ metadata }) => metadata.name)).toEqual(["whole"]);
  expect(keys).toEqual(["n/whole"]);
});

test("a throttled watch waits as long as the server asks, and then resumes", async () => {
  const atMs: number[] = [];
  await reflect({
    list: (response) => list(response, 5),
    watch: (response, nth) => {
      atMs.push(clock.monoMs());
      response.write(nth === 1 ? line("ERROR", { code: 429, details: { retryAfterSeconds: 9 } }) : bookmark(6));
    },
  });
  await until(() => atMs.length).toBe(2);
  expect((atMs[1] ?? 0) - (atMs[0] ?? 0)).toBeGreaterThan(8900);
  expect(lists().length).toBe(1);
});

test("an object without a name, or one that an indexer chokes on, is left out alone", async () => {
  await reflect({
    list: (response) => list(response, 5, pod("a", 4), { metadata: {} }, {}, pod("b", 5)),
    watch: (response, nth) => nth === 1 && response.write(line("ADDED", { spec: 1 }) + line("ADDED", pod("c", 6))),
  });
  await synced("c");
  expect(keys).toEqual(["n/a", "n/b", "n/c"]);
  expect(reflector.counters.badObjects).toBe(3);
});

test.each([
  ["breaks every watch", (response: ServerResponse) => response.socket?.destroy()],
  ["ends every watch at once", (response: ServerResponse) => response.end()],
  ["answers every watch with an error", (response: ServerResponse) => response.end(line("ERROR", { code: 500 }))],
])("a server that %s is not stormed: seconds apart at first, then half a minute", async (_name, watch) => {
  await reflect({ list: (response) => list(response, 5), watch }, { factor: 20 });
  await clock.sleep(60_000);
  // Waits of 2, 4, 8, 16, 30 s, give or take 20 %; of a machine that stood still meanwhile, fewer.
  await until(() => reflector.counters.watches).toBeGreaterThanOrEqual(3);
  expect(reflector.counters.watches).toBeLessThanOrEqual(7);
  expect(lists().length).toBeLessThanOrEqual(7);
  // A request over a connection that had been open before is sent once more, over a new one.
  expect(watches().length).toBeLessThanOrEqual(14);
});

test("a server that sends something and ends each watch is asked once a second at most, over one connection or two", async () => {
  await reflect(
    { list: (response) => list(response, 5), watch: (response) => response.end(bookmark(6)) },
    { factor: 20 },
  );
  await clock.sleep(20_000);
  await until(() => watches().length).toBeGreaterThanOrEqual(5);
  expect(watches().length).toBeLessThanOrEqual(27);
  expect(server.openSockets()).toBeLessThanOrEqual(2);
});

test("staleness is endless before the first list, small after any sign of life, and grows in silence", async () => {
  let ready = (): void => {};
  await reflect({
    list: (response) => {
      ready = () => list(response, 5);
    },
    watch: () => {},
  });
  await until(() => lists().length).toBe(1);
  expect(reflector.stalenessMs()).toBe(Number.POSITIVE_INFINITY);
  ready();
  await reflector.synced;
  const soonMs = reflector.stalenessMs();
  await clock.sleep(5000);
  expect(soonMs).toBeLessThan(5000);
  expect(reflector.stalenessMs()).toBeGreaterThan(4900);
});

test("a list that is wanted now is read now, also while a watch seems well, and the watch begins anew behind it", async () => {
  await reflect({
    list: (response, nth) => list(response, nth * 10, ...(nth === 1 ? [] : [pod("unheard", 11)])),
    watch: (response, nth) => response.write(bookmark(10 * nth)),
  });
  await reflector.synced;
  await until(() => watches().length).toBe(1);
  await reflector.refresh();
  expect(reflector.store.get("n/unheard")).toBeDefined();
  await until(() => watches().map(({ query }) => query.get("resourceVersion"))).toEqual(["10", "20"]);
});

test("a list that is wanted while one is on its way is another one; both that wait are answered", async () => {
  const answers: (() => void)[] = [];
  await reflect({
    list: (response, nth) => answers.push(() => list(response, nth, pod(`of-${nth}`, nth))),
    watch: () => {},
  });
  await until(() => answers.length).toBe(1);
  const wanted = [reflector.refresh(), reflector.refresh()];
  await until(() => answers.length).toBe(2);
  for (const answer of answers) answer();
  await Promise.all(wanted);
  expect(reflector.store.list().map(({ metadata }) => metadata.name)).toEqual(["of-2"]);
});

test("A11: 5 minutes of errors, then of answers after 8 s: asked less and less, and up to date soon after", async () => {
  const calmMs = 300_000;
  let startMs = 0;
  const inTrouble = (): boolean => clock.monoMs() - startMs < calmMs;
  await reflect(
    {
      list: (response, nth) => {
        if (nth === 1) startMs = clock.monoMs();
        if (inTrouble()) json(response, 500, { message: "etcdserver: request timed out" });
        else void clock.sleep(8_000).then(() => list(response, nth, pod("a", 1)));
      },
      watch: (response, nth) => void clock.sleep(8_000).then(() => response.write(bookmark(nth))),
    },
    { factor: 50 },
  );
  await until(() => reflector.problem).toMatch(/etcdserver/);
  await reflector.synced;
  const listed = lists().length;
  // 2, 4, 8, 16 s, and then every half minute, give or take 20 %.
  expect(listed).toBeLessThan(20);
  expect(clock.monoMs() - startMs - calmMs).toBeLessThan(120_000);
  expect(reflector.problem).toBeNull();
  await until(() => watches().length).toBeGreaterThan(0);
});
