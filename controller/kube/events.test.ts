import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { afterEach, expect, test } from "vitest";
import { type Clock, systemClock } from "../../platform/clock.ts";
import { type HttpClient, httpClient } from "../../platform/http.ts";
import { silentLogger } from "../../platform/log.ts";
import { systemRandom } from "../../platform/random.ts";
import { fastClock } from "../../testing/clocks.ts";
import { type FaultyServer, type Handler, json, startFaultyServer } from "../../testing/faultyserver.ts";
import { KubeApi } from "./api.ts";
import { EventRecorder, type EventText } from "./events.ts";

let server: FaultyServer;
let client: HttpClient;
let recorder: EventRecorder;

async function serve(handler: Handler, clock: Clock = systemClock): Promise<void> {
  server = await startFaultyServer(handler);
  client = httpClient({ baseUrl: server.url, clock });
  const api = new KubeApi(client, clock, "test");
  recorder = new EventRecorder({
    api,
    clock,
    random: systemRandom,
    log: silentLogger,
    controller: "fencedjob.dev/controller",
    instance: "pod",
  });
}

afterEach(async () => {
  client.close();
  await server.stop();
});

const ok: Handler = (_asked, response) => json(response, 200, {});
const job = (name = "a") => ({
  apiVersion: "fencedjob.dev/v1alpha1",
  kind: "FencedJob",
  metadata: { name, namespace: "n", uid: name },
});
const text = (note: string): EventText => ({ type: "Normal", reason: "Granted", action: "Grant", note });

test("the same event again raises one count, sent at intervals; another note is another event", async () => {
  const clock = fastClock(20);
  await serve(ok, clock);
  recorder.record(job(), text("generation 1"));
  await expect.poll(() => server.asked.length).toBe(1);
  for (let i = 0; i < 100; i++) recorder.record(job(), text("generation 1"));
  await expect.poll(() => server.asked.length).toBe(2);
  recorder.record(job(), text("generation 2"));
  await expect.poll(() => server.asked.length).toBe(3);
  expect(server.asked.map(({ method }) => method)).toEqual(["POST", "PATCH", "POST"]);
  expect(server.asked[1]?.body).toMatchObject({ series: { count: 101 } });
  expect(server.asked[0]?.body).toMatchObject({
    eventTime: expect.stringMatching(/\.\d{6}Z$/),
    regarding: { kind: "FencedJob", namespace: "n", name: "a", uid: "a" },
  });
});

test("names sort in the order of the events, which is the order of kubectl describe", async () => {
  await serve(ok);
  for (let i = 0; i < 20; i++) recorder.record(job(), text(`step ${i}`));
  await expect.poll(() => server.asked.length).toBe(20);
  const sent = server.asked.map(({ body }) => body as { metadata: { name: string }; note: string });
  const sorted = sent.toSorted((a, b) => (a.metadata.name < b.metadata.name ? -1 : 1));
  expect(sorted.map(({ note }) => note)).toEqual(Array.from({ length: 20 }, (_, i) => `step ${i}`));
});

test("a flood of different events about one object is cut off, and other objects are not", async () => {
  await serve(ok);
  for (let i = 0; i < 200; i++) recorder.record(job(), text(`generation ${i}`));
  recorder.record(job("b"), text("generation 1"));
  await recorder.flush(10_000);
  expect(server.asked.length).toBe(26);
  expect(recorder.counters).toEqual({ sent: 26, dropped: 175, failed: 0 });
});

test("an object is not kept in memory by what was said about it", async () => {
  await serve(ok);
  const said = ((): WeakRef<object> => {
    const object = job();
    recorder.record(object, text("generation 1"));
    return new WeakRef(object);
  })();
  await recorder.flush(10_000);
  setFlagsFromString("--expose-gc");
  const collect: () => void = runInNewContext("gc");
  const isKept = (): boolean => {
    collect();
    return said.deref() !== undefined;
  };
  await expect.poll(isKept, { timeout: 10_000 }).toBe(false);
});

test("a note is cut to 1,024 bytes at a whole character", async () => {
  await serve(ok);
  recorder.record(job(), text("x".repeat(1024)));
  recorder.record(job(), text("€".repeat(1000)));
  recorder.record(job(), text(`x${"😀".repeat(1000)}`));
  await recorder.flush(10_000);
  const notes = server.asked.map(({ body }) => (body as EventText).note);
  expect(notes.map((note) => Buffer.byteLength(note))).toEqual([1024, 1023, 1024]);
  expect(notes.map((note) => note.slice(-3))).toEqual(["xxx", "€€…", "😀…"]);
});

test("a server that hangs holds up neither the caller nor the end of the process", async () => {
  await serve(() => {});
  for (let i = 0; i < 1000; i++) recorder.record(job(`job-${i}`), text("generation 1"));
  await expect.poll(() => server.asked.length).toBe(1);
  const startMs = systemClock.monoMs();
  await recorder.flush(200);
  // What is on its way would be given up after ten seconds.
  expect(systemClock.monoMs() - startMs).toBeLessThan(5_000);
  expect(recorder.counters.dropped).toBe(500);
  expect(server.asked.length).toBe(1);
});

test("an event is tried three times, under a new name where the first may have arrived, and then dropped", async () => {
  await serve((asked, response, nth) => (nth < 3 ? asked.socket.destroy() : json(response, 500, {})), fastClock(20));
  recorder.record(job(), text("generation 1"));
  await expect.poll(() => recorder.counters.failed).toBe(1);
  expect(server.asked.length).toBe(3);
  const names = server.asked.map(({ body }) => (body as { metadata: { name: string } }).metadata.name);
  expect(new Set(names).size).toBe(3);
});

test("an event that the server forbids or finds wrong is tried once", async () => {
  await serve((_asked, response, nth) => json(response, nth === 1 ? 403 : 422, {}), fastClock(20));
  recorder.record(job(), text("generation 1"));
  recorder.record(job(), text("generation 2"));
  await expect.poll(() => recorder.counters.failed).toBe(2);
  expect(server.asked.length).toBe(2);
});

test("an object that cannot be recorded throws nothing", async () => {
  await serve(ok);
  recorder.record({} as never, text("generation 1"));
  expect(recorder.counters.dropped).toBe(1);
});
