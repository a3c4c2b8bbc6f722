import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { until } from "../../testing/until.ts";
import { isRunning, locked, logTail, runningPid, startDaemon, stopDaemon, waitReady } from "./daemon.ts";

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "fencedjob-daemon-"));
});
afterEach(async () => {
  await stopDaemon(dir, "it", 0);
  rmSync(dir, { recursive: true });
});

const sleeper = { name: "it", command: ["sleep", "600"] };

test("a program that runs is not started twice, and is gone after it was stopped", async () => {
  startDaemon(dir, sleeper);
  const pid = runningPid(dir, "it");
  startDaemon(dir, sleeper);
  expect(runningPid(dir, "it")).toBe(pid);
  await stopDaemon(dir, "it");
  expect(isRunning(dir, "it")).toBe(false);
  expect(existsSync(join(dir, "it.pid"))).toBe(false);
});

test("a program that ignores SIGTERM is killed", async () => {
  startDaemon(dir, { name: "it", command: ["sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 0.05; done"] });
  await until(() => logTail(dir, "it") === "deaf");
  await stopDaemon(dir, "it", 200);
  expect(isRunning(dir, "it")).toBe(false);
});

test("a program whose first thread has ended, and another not yet, still runs", async () => {
  // So a killed etcd looks for a moment, and whoever started it anew then found its port taken.
  const exit = process.arch === "arm64" ? 93 : 60; // that of one thread, not exit_group
  const exitOfOneThread = `use threads; threads->create(sub { sleep 600 }); syscall(${exit}, 0)`;
  startDaemon(dir, { name: "it", command: ["perl", "-e", exitOfOneThread] });
  const pid = runningPid(dir, "it");
  await until(() => readFileSync(`/proc/${pid}/stat`, "utf8").includes(") Z "));
  expect(runningPid(dir, "it")).toBe(pid);
  await stopDaemon(dir, "it", 0);
  expect(isRunning(dir, "it")).toBe(false);
});

test("another process that got the pid of a dead one is left alone", async () => {
  startDaemon(dir, sleeper);
  const path = join(dir, "it.pid");
  const written = readFileSync(path, "utf8");
  const { pid } = JSON.parse(written) as { pid: number };
  writeFileSync(path, JSON.stringify({ ...JSON.parse(written), startTicks: "1" }));
  await stopDaemon(dir, "it");
  expect(() => process.kill(pid, 0)).not.toThrow();
  writeFileSync(path, written);
});

test("a program that ends while it is waited for is reported with the end of its log", async () => {
  startDaemon(dir, { name: "it", command: ["sh", "-c", "echo no such flag; exit 1"] });
  await expect(waitReady(dir, ["it"], "it answers", 60_000, async () => false)).rejects.toThrow(
    "it ended while starting:\nno such flag",
  );
});

test("a lock is held by one at a time, and one that a dead process left is taken", async () => {
  writeFileSync(join(dir, "lock.pid"), JSON.stringify({ pid: 1, startTicks: "none", bootId: "earlier" }));
  const said: string[] = [];
  const order: string[] = [];
  const task = (name: string) =>
    locked(
      dir,
      "lock",
      (line) => said.push(line),
      async () => {
        order.push(`${name} in`);
        await new Promise((resolve) => setImmediate(resolve));
        order.push(`${name} out`);
      },
    );
  await Promise.all([task("first"), task("second")]);
  expect(order).toEqual(["first in", "first out", "second in", "second out"]);
  expect(said).toEqual([expect.stringContaining(`waiting for process ${process.pid}`)]);
});
