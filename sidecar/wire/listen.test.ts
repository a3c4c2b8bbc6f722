/** The file of a Unix socket: whose it is, who may replace it, and who may connect from its first moment on. */
import { execFile } from "node:child_process";
import { mkdtempSync, rmSync, statSync } from "node:fs";
import { connect, createServer, type Server } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { expect, onTestFinished, test } from "vitest";
import { listen } from "./listen.ts";

const run = promisify(execFile);

function aDirectory(): string {
  const dir = mkdtempSync(join(tmpdir(), "fencedjob-listen-"));
  onTestFinished(() => rmSync(dir, { recursive: true }));
  return dir;
}

/** Says its number to whoever connects. */
function aServer(number: number): Server {
  const server = createServer((socket) => socket.on("error", () => {}).end(String(number)));
  onTestFinished(() => void server.close());
  return server;
}

test("of several that start at once on an abandoned socket one gets it and is reached, the others are told", async () => {
  const address = { host: aDirectory(), port: 1 };
  const path = join(address.host, ".s.PGSQL.1");
  // A child that is killed cannot remove its socket.
  const leaves = `require("net").createServer().listen(${JSON.stringify(path)}, () => process.kill(process.pid, "SIGKILL"))`;
  await run(process.execPath, ["-e", leaves]).catch(() => {});
  expect(statSync(path).isSocket()).toBe(true);

  const servers = [0, 1, 2].map(aServer);
  const outcomes = await Promise.allSettled(servers.map((server) => listen(server, address)));
  const told = outcomes.filter((outcome) => outcome.status === "rejected").map(({ reason }) => reason.code);
  expect(told).toEqual(["EADDRINUSE", "EADDRINUSE"]);
  const reached = new Promise((resolve) => connect({ path }).once("data", (said) => resolve(Number(said))));
  expect(await reached).toBe(outcomes.findIndex(({ status }) => status === "fulfilled"));
});

test.each([
  [undefined, 0o600],
  [0o777, 0o777],
])("its owner's alone until mode %s is set, under any mask of the program", async (socketMode, mode) => {
  const address = { host: aDirectory(), port: 1, ...(socketMode !== undefined && { socketMode }) };
  const path = join(address.host, ".s.PGSQL.1");
  const mask = process.umask(0);
  onTestFinished(() => void process.umask(mask));
  const listening = listen(aServer(0), address);
  // It is bound, and a connection would be taken.
  expect(statSync(path).mode & 0o077).toBe(0);
  await listening;
  expect(statSync(path).mode & 0o777).toBe(mode);
  expect(process.umask()).toBe(0);
});
