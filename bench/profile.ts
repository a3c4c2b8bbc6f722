/**
 * Where the time of a round trip goes in the processes between client and server, as the kernel and perf see it.
 * `node bench/profile.ts [--write]`
 *
 * perf costs time itself: shares and counts are from runs with it, processor time is from runs without it.
 */
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { command } from "../conformance/command.ts";
import { type Cell, cellName, cellsOf, ROUND_TRIPS, type TargetName } from "./cells.ts";
import type { Ground } from "./ground.ts";
import { parseReport, parseStat, STAT_EVENTS } from "./perf.ts";
import { runPgbench } from "./pgbenchrun.ts";
import { cpuOf } from "./processfacts.ts";
import { onGround, say } from "./program.ts";
import { type Profile, writeResults } from "./results.ts";
import { startTargets, type Target, targetMissing } from "./targets.ts";

const PERF = "/usr/bin/perf";
const CELLS = cellsOf(["select-only/prepared/1", "select-only/prepared/8", "simple-update/prepared/8"]);
const MEASURED: readonly TargetName[] = ["pgbouncer", "pipe", "unfenced", "fenced"];
const SECONDS = 6;
/** Until V8 has compiled what it will. */
const WARM_UP_SECONDS = 3;
/** Not a divisor of the kernel's own ticks. */
const SAMPLES_PER_SECOND = 1999;
const FUNCTIONS_SHOWN = 15;
const REPORT_MS_MAX = 60_000;

if (existsSync(PERF)) await onGround(profileAll);
else say(`SKIPPED  profile: perf is not installed (apt-get install linux-perf)`);

async function profileAll(ground: Ground, facts: Parameters<Parameters<typeof onGround>[0]>[1]): Promise<void> {
  // So that perf finds the names of what V8 has compiled.
  const wanted = MEASURED.map((name) => ({ name, sockets: "tcp" as const, nodeFlags: ["--perf-basic-prof"] }));
  const { targets, stop } = await startTargets(
    ground,
    wanted.filter((one) => targetMissing(one) === null),
  );
  const scratch = mkdtempSync(join(tmpdir(), "fencedjob-profile-"));
  const profiles: Profile[] = [];
  try {
    for (const cell of CELLS) {
      for (const target of targets) {
        if (target.pid === undefined) continue;
        profiles.push(await profile(target, target.pid, cell, scratch));
      }
    }
  } finally {
    await stop();
    rmSync(scratch, { recursive: true, force: true });
    for (const { pid } of targets) rmSync(`/tmp/perf-${pid}.map`, { force: true });
  }
  if (process.argv.includes("--write")) writeResults("profile", { ...facts, seconds: SECONDS, profiles });
}

async function profile(target: Target, pid: number, cell: Cell, scratch: string): Promise<Profile> {
  const run = { cell, seconds: SECONDS, randomSeed: 1 };
  const trips = ROUND_TRIPS[cell.script];
  await runPgbench(target, { ...run, seconds: WARM_UP_SECONDS });

  const before = cpuOf(pid);
  const plain = (await runPgbench(target, run)).transactions * trips;
  const after = cpuOf(pid);
  const userUs = (after.userUs - before.userUs) / plain;
  const systemUs = (after.systemUs - before.systemUs) / plain;

  const statFile = join(scratch, "stat");
  const stat = [PERF, "stat", "-x", ",", "-e", STAT_EVENTS, "-p", String(pid), "-o", statFile, "--"];
  const counted = (await runPgbench(target, { ...run, under: stat })).transactions * trips;
  const counts = parseStat(readFileSync(statFile, "utf8"), counted);

  const samples = join(scratch, "samples");
  const clock = ["-e", "cpu-clock", "-F", String(SAMPLES_PER_SECOND)];
  await runPgbench(target, { ...run, under: [PERF, "record", "-q", ...clock, "-p", String(pid), "-o", samples, "--"] });
  const { parts, functions } = parseReport(await perfReport(samples));

  const ofTime = ([name, share]: readonly [string, number]): [string, number] => [name, share * (userUs + systemUs)];
  const told: Profile = {
    cell: cellName(cell),
    target: target.key,
    userUs,
    systemUs,
    ...counts,
    parts: parts.map(ofTime).map(([part, us]) => ({ part, us })),
    functions: functions
      .slice(0, FUNCTIONS_SHOWN)
      .map(ofTime)
      .map(([name, us]) => ({ name, us })),
  };
  sayProfile(told);
  return told;
}

async function perfReport(samples: string): Promise<string> {
  const fields = ["--stdio", "--field-separator", "\t", "--fields", "overhead,dso,sym"];
  const { code, stdout, stderr } = await command(PERF, ["report", "-i", samples, ...fields], {
    timeoutMs: REPORT_MS_MAX,
  });
  if (code !== 0) throw new Error(`perf report ended with ${code}:\n${stderr}`);
  return stdout;
}

function sayProfile({ cell, target, userUs, systemUs, systemCalls, contextSwitches, parts, functions }: Profile): void {
  const calls = Object.entries(systemCalls).map(([name, n]) => `${n.toFixed(2)} ${name}`);
  say(`\n${cell}, ${target}: per round trip ${userUs.toFixed(1)} µs user, ${systemUs.toFixed(1)} µs system`);
  say(`  ${calls.join(", ")}, ${contextSwitches.toFixed(2)} context switches`);
  for (const { part, us } of parts) say(`  ${us.toFixed(1).padStart(6)} µs  ${part}`);
  for (const { name, us } of functions) say(`  ${us.toFixed(2).padStart(6)} µs    ${name}`);
}
