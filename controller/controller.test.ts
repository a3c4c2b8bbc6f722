import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { expect, onTestFinished, test } from "vitest";
import { DEFAULT_ELECTION_TIMING } from "../lease/timing.ts";
import { systemClock } from "../platform/clock.ts";
import { silentLogger } from "../platform/log.ts";
import { systemRandom } from "../platform/random.ts";
import { type ControllerOptions, startController } from "./controller.ts";

/** At an API server that nobody has. */
const options: ControllerOptions = {
  kube: { baseUrl: "https://127.0.0.1:1", credentials: async () => ({}), namespace: "here", source: "a test" },
  sidecar: { image: "fencedjob:test", imagePullPolicy: "Never", resources: {} },
  workers: 1,
  healthPort: 0,
  election: {
    lease: { namespace: "here", name: "lease" },
    timing: DEFAULT_ELECTION_TIMING,
    pod: { name: "a", uid: "a" },
  },
  clock: systemClock,
  random: systemRandom,
  log: silentLogger,
};

test.each([
  [{ durationMs: 7_500 }, /whole seconds/],
  [{ marginMs: 9_000 }, /must be below the duration/],
  [{ renewIntervalMs: 0 }, /above 0/],
])(
  "an election that could never begin (%j) is told at the start; a controller of it was ready, and never led",
  async (change, why) => {
    const timing = { ...DEFAULT_ELECTION_TIMING, ...change };
    await expect(startController({ ...options, election: { ...options.election, timing } })).rejects.toThrow(why);
  },
);

test("one whose port is taken ends, and does not go on without anybody who could ask for its health", async () => {
  const other = createServer().listen(0);
  onTestFinished(() => void other.close());
  const healthPort = (other.address() as AddressInfo).port;
  let asked = 0;
  const kube = { ...options.kube, credentials: async () => ({ headers: { asked: String(asked++) } }) };
  await expect(startController({ ...options, kube, healthPort })).rejects.toThrow("EADDRINUSE");
  const before = asked;
  // It would try again after half a second.
  await systemClock.sleep(1_200);
  expect(asked).toBe(before);
});
