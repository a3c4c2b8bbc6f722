/** A way that loses every packet, in a network namespace of its own: neither end is told of it. */
import { execFile, spawnSync } from "node:child_process";
import { join } from "node:path";
import { promisify } from "node:util";
import { expect, test } from "vitest";

const PROCESS = join(import.meta.dirname, "..", "testing", "lostwayprocess.ts");
const OWN_NETWORK = ["--map-root-user", "--net"];
const missing = spawnSync("unshare", [...OWN_NETWORK, "ip", "link", "set", "lo", "up"]).status !== 0;

test.skipIf(missing)("the reader of a stream is told of it within seconds", async () => {
  const { stdout } = await promisify(execFile)("unshare", [...OWN_NETWORK, process.execPath, PROCESS]);
  expect(stdout).toMatch(/^\d+$/);
  // Six; any other connection is told after twenty.
  expect(Number(stdout)).toBeLessThan(15_000);
});
