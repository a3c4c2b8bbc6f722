/**
 * The scenarios of each driver: one program per driver in `drivers/`, run on each side, and once more as a generation that
 * a successor ends in the middle of its transaction. What they print is compared scenario by scenario.
 */
import { once } from "node:events";
import { cpSync, mkdtempSync, rmSync } from "node:fs";
import { connect, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { isUnixSocket, socketPath } from "../fence/database.ts";
import { type Arena, environmentOf, onEachSide, type Side } from "./arena.ts";
import { command, type Ended } from "./command.ts";
import { DRIVERS, type Driver, type Program } from "./drivers.ts";
import type { Outcomes, Sides } from "./results.ts";

const RUN_MS_MAX = 120_000;
const WANTED = "(wanted: refused with LF001)";

export async function runDriver(driver: Driver, arena: Arena): Promise<Sides> {
  const directory = mkdtempSync(join(tmpdir(), "fencedjob-driver-"));
  try {
    cpSync(DRIVERS, directory, { recursive: true });
    const program = await driver.prepare(directory);
    const sides = await onEachSide(arena, async (side) => {
      const { outcomes, ended } = await runProgram(program, side);
      if (ended.code !== 0) outcomes.set("(the program's end)", `exit ${ended.code}: ${ended.stderr.slice(-400)}`);
      return outcomes;
    });
    const stale = await runStale(program, driver, arena);
    // Direct has no generation that could end: what is wanted stands in its place.
    const wanted = new Map([...stale.keys()].map((check) => [check, WANTED] as const));
    return {
      direct: new Map([...sides.direct, ...wanted]),
      proxied: new Map([...sides.proxied, ...stale]),
      ...(sides.pooled && { pooled: new Map([...sides.pooled, ...wanted]) }),
    };
  } finally {
    rmSync(directory, { recursive: true, force: true });
  }
}

async function runStale(program: Program, driver: Driver, arena: Arena): Promise<Outcomes> {
  await arena.reset();
  let visitor: Socket | undefined;
  const { outcomes, ended } = await runProgram(program, arena.proxied, {
    args: ["stale"],
    raise: async () => {
      visitor = await visit(arena.proxied);
      await arena.takeOver();
      return "raised";
    },
  });
  visitor?.destroy();
  await arena.succeed();
  const judged = new Map([...outcomes].map(([scenario, outcome]) => judge(scenario, outcome)));
  if (outcomes.size === 0) judged.set("(stale)", `exit ${ended.code}: ${ended.stderr.slice(-400)}`);
  const { rows } = await arena.admin.query(driver.leftBehind ?? "SELECT count(*) AS n FROM stale");
  judged.set("rows that a stale generation left", rows[0].n === "0" ? WANTED : `${rows[0].n} rows`);
  return judged;
}

/** A proxy whose generation is over ends when nobody is connected; one who says nothing keeps it for a while. */
async function visit(side: Side): Promise<Socket> {
  const socket = connect(isUnixSocket(side) ? { path: socketPath(side) } : { host: side.host, port: side.port });
  socket.on("error", () => {});
  await once(socket, "connect");
  return socket;
}

function judge(scenario: string, outcome: string): [check: string, outcome: string] {
  // Under a name of its own, so that no reason covers it.
  if (outcome.includes("committed")) return [`${scenario}: it committed`, outcome];
  return [scenario, /\bLF001\b/.test(outcome) ? WANTED : outcome];
}

async function runProgram(
  { program, args, env }: Program,
  side: Side,
  stale?: { readonly args: readonly string[]; readonly raise: () => Promise<string> },
): Promise<{ outcomes: Map<string, string>; ended: Ended }> {
  const ended = await command(program, [...args, ...(stale?.args ?? [])], {
    env: { ...environmentOf(side), ...env },
    timeoutMs: RUN_MS_MAX,
    answer: async (line) => (line.startsWith('{"raise"') ? await stale?.raise() : undefined),
  });
  const outcomes = new Map<string, string>();
  // Each side has one of its own, in each run.
  const ownPort = new RegExp(`(:|port )${side.port}\\b`, "g");
  for (const line of ended.stdout.split("\n")) {
    if (!line.startsWith("{")) continue;
    const { scenario, outcome } = JSON.parse(line) as { scenario?: string; outcome?: string };
    if (scenario !== undefined) outcomes.set(scenario, (outcome ?? "").replaceAll(ownPort, "$1PORT"));
  }
  return { outcomes, ended };
}
