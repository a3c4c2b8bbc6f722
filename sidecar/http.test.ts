/** The startup probe is answered when the application may start, not when the kubelet next asks. */
import { afterEach, expect, test, vi } from "vitest";
import { systemClock } from "../platform/clock.ts";
import { freePort } from "../testing/postgres.ts";
import { until } from "../testing/until.ts";
import { type SidecarState, startSidecarServer } from "./http.ts";

const state = { started: false, state: "waiting for ownership", generation: null, rejectedWrites: 0, held: 0 };
const stops: (() => Promise<void>)[] = [];

afterEach(async () => {
  for (const stop of stops.splice(0)) await stop();
});

/** With timers that fire when the test says so. */
async function aServer() {
  const port = await freePort();
  const timers = new Set<() => void>();
  const after = (_ms: number, fire: () => void) => {
    timers.add(fire);
    return () => void timers.delete(fire);
  };
  let now: SidecarState = state;
  const started = Promise.withResolvers<void>();
  const waits = vi.spyOn(started.promise, "then");
  const server = await startSidecarServer({
    port,
    clock: { ...systemClock, after },
    state: () => now,
    whenStarted: started.promise,
  });
  stops.push(() => server.stop());
  return {
    ask: (path: string, signal?: AbortSignal) => fetch(`http://127.0.0.1:${port}${path}`, signal ? { signal } : {}),
    asked: () => until(() => timers.size > 0),
    timers,
    waits,
    start: () => {
      now = { ...state, started: true, state: "owner, generation 1" };
      started.resolve();
    },
  };
}

test("a probe that came before the raise is answered by it (INV-4), and one that comes after it at once", async () => {
  const server = await aServer();
  const probe = server.ask("/started");
  await server.asked();
  server.start();
  expect((await probe).status).toBe(200);
  expect(await (await server.ask("/started")).text()).toBe("owner, generation 1\n");
  await until(() => server.timers.size === 0);
});

test("a probe is told no before the kubelet gives it up, and may start nothing", async () => {
  const server = await aServer();
  const probe = server.ask("/started");
  await server.asked();
  for (const fire of server.timers) fire();
  expect((await probe).status).toBe(503);
});

test("a kubelet that goes away leaves nothing behind; the state is told meanwhile", async () => {
  const server = await aServer();
  const away = new AbortController();
  const probe = server.ask("/started", away.signal).catch(() => "away");
  await server.asked();
  expect(await (await server.ask("/status")).json()).toEqual(state);
  away.abort();
  expect(await probe).toBe("away");
  await until(() => server.timers.size === 0);
});

test("a standby that is asked for weeks keeps none of the probes in memory", async () => {
  const server = await aServer();
  for (let i = 0; i < 3; i++) {
    const probe = server.ask("/started");
    await server.asked();
    for (const fire of server.timers) fire();
    await (await probe).text();
    await until(() => server.timers.size === 0);
  }
  expect(server.waits).toHaveBeenCalledTimes(1);
});
