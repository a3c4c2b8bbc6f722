/** INV-9: two controllers at once break no invariant; here, that they do not wear each other out either. */
import { expect, test } from "vitest";
import { type FencedJobStatus, readStatus } from "./api/status.ts";
import { type Rivalry, restMs, wrote } from "./rivalry.ts";

const saying = (summary: string): FencedJobStatus => readStatus({ summary });
const ROUND_TRIP_MS = 10;

/** Two that look at each write of the other's; what each of them would write, by when it looks. */
function dispute(opinions: readonly ((atMs: number) => string)[], forMs: number): number[] {
  const memories: (Rivalry | undefined)[] = opinions.map(() => undefined);
  const writesMs: number[] = [];
  let status = saying("");
  for (let nowMs = 0; nowMs < forMs; nowMs += ROUND_TRIP_MS) {
    const who = (nowMs / ROUND_TRIP_MS) % opinions.length;
    const next = saying(opinions[who]?.(nowMs) ?? "");
    if (next.summary === status.summary || restMs(memories[who], status, next, nowMs) > 0) continue;
    memories[who] = wrote(memories[who], status, next, nowMs);
    status = next;
    writesMs.push(nowMs);
  }
  return writesMs;
}

test("two that are not of one opinion write it at once at first, then ever more rarely, but go on", () => {
  const writesMs = dispute([() => "Owned", () => "Owner does not renew"], 60_000);
  expect(writesMs.filter((ms) => ms < 1_000)).toHaveLength(6);
  expect(writesMs.length).toBeLessThan(30);
  expect(60_000 - (writesMs.at(-1) ?? 0)).toBeLessThanOrEqual(8_000);
});

test("… also where they differ in a pod's number only, as two that see two Leases", () => {
  const writesMs = dispute([() => "waits for run-1", () => "waits for run-5"], 10_000);
  expect(writesMs.length).toBeLessThan(20);
});

test("… and where they differ in the pods that they want only, as by two versions of the spec", () => {
  const wanted = (pods: string[]) => ({ ...saying("Owned"), candidates: pods.map((pod) => ({ attempt: 1, pod })) });
  const [none, one] = [wanted([]), wanted(["run-7"])];
  let rivalry = wrote(undefined, one, none, 0);
  for (let i = 1; i <= 3; i++) rivalry = wrote(rivalry, one, none, i * 10);
  expect(restMs(rivalry, one, none, 40)).toBeGreaterThan(0);
});

test("pods that were made anew are the same opinion: their numbers are not looked at", () => {
  const writesMs = dispute([() => "Owned", (ms) => `Waiting: run-${Math.floor(ms / 3_000)}`], 10_000);
  expect(writesMs.length).toBeLessThan(20);
});

test("who writes something new does not wait, however often another has written in between", () => {
  let step = 0;
  const next = (): string => String.fromCharCode(65 + step++);
  expect(dispute([next, next], 200)).toHaveLength(20);
});

test("a dispute that is over is forgotten after a minute", () => {
  const [ours, theirs] = [saying("Owned"), saying("Owner does not renew")];
  let rivalry = wrote(undefined, theirs, ours, 0);
  for (let i = 1; i <= 6; i++) rivalry = wrote(rivalry, theirs, ours, i * 10);
  expect(restMs(rivalry, theirs, ours, 70)).toBeGreaterThan(7_000);
  expect(restMs(rivalry, theirs, ours, 60_100)).toBe(0);
  expect(wrote(rivalry, theirs, ours, 60_100).times).toBe(1);
});
