/**
 * Run in a network namespace of its own (`unshare -rn`): opens a stream, then loses every packet of its way, both ends none the wiser,
 * and prints after how many ms the stream's reader was told.
 */
import { execFileSync } from "node:child_process";
import { systemClock } from "../platform/clock.ts";
import { httpClient } from "../platform/http.ts";
import { startFaultyServer } from "./faultyserver.ts";

const SERVER = "127.0.0.2";
const ip = (...command: string[]): Buffer => execFileSync("ip", command);

ip("link", "set", "lo", "up");
const server = await startFaultyServer((_asked, response) => response.writeHead(200).write("one\n"), SERVER);
const client = httpClient({ baseUrl: server.url, clock: systemClock });
const { lines } = await client.stream({ path: "/", timeoutMs: 5_000, silentMs: 120_000 });
let lostAtMs = 0;
try {
  for await (const _line of lines ?? []) {
    ip("route", "add", "blackhole", `${SERVER}/32`, "table", "local");
    lostAtMs = systemClock.monoMs();
  }
} catch {
  process.stdout.write(String(Math.round(systemClock.monoMs() - lostAtMs)));
}
client.close();
await server.stop();
