/** Runs spin on the protocol: generates its checker, compiles it, and says what that has found. */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { run } from "../e2e/cluster/command.ts";
import { onPath } from "../e2e/cluster/prerequisites.ts";

const SOURCE = join(import.meta.dirname, "protocol.pml");
const DEPTH_MAX = 1_000_000;
const MEMORY_MB_MAX = 4_000;
const RUN_MS_MAX = 600_000;
/** log2 of the slots of its hash table. */
const HASH_BITS = 24;

/** Of what there may be, and of what may go wrong, how much; what is left out is 0. */
export interface Bounds {
  readonly pods: number;
  readonly controllers?: number;
  readonly restarts?: number;
  readonly losses?: number;
  readonly restores?: number;
  readonly deletions?: number;
  /** Any Lease at any time, and no controller. */
  readonly lawless?: boolean;
  /** INV-11 is what is checked: under weak fairness, by owners that are ended only when they are over. */
  readonly live?: boolean;
}

export interface Verdict {
  /** The invariant that breaks; null when none does. */
  readonly broken: string | null;
  readonly states: number;
}

/** Why the model cannot be checked here, with what to do; null when it can. */
export function modelMissing(): string | null {
  const missing = ["spin", "gcc"].filter((program) => !onPath(program));
  if (missing.length === 0) return null;
  return `${missing.join(" and ")} not found. Install: apt-get install -y spin gcc. Nothing was changed.`;
}

/** `mutant`: the `#ifdef` of the model that takes a safety line away. */
export async function check(bounds: Bounds, mutant?: string): Promise<Verdict> {
  const dir = mkdtempSync(join(tmpdir(), "fencedjob-model-"));
  try {
    const { live = false } = bounds;
    await run(["spin", "-a", ...definesOf(bounds, mutant), SOURCE], { cwd: dir });
    // A mutant breaks soon: compiling it well takes longer than running it.
    const flags = [mutant ? "-O0" : "-O2", "-w", "-DCOLLAPSE", `-DMEMLIM=${MEMORY_MB_MAX}`];
    await run(["gcc", ...flags, live ? "-DNFAIR=4" : "-DSAFETY", "-o", "pan", "pan.c"], { cwd: dir });
    // -E: that nothing moves any more is no fault by itself; INV-11 says when it is.
    const how = live ? ["-a", "-f"] : ["-E"];
    const text = await run(["./pan", ...how, `-m${DEPTH_MAX}`, `-w${HASH_BITS}`], { cwd: dir, timeoutMs: RUN_MS_MAX });
    return read(text);
  } finally {
    rmSync(dir, { recursive: true });
  }
}

function definesOf(bounds: Bounds, mutant: string | undefined): string[] {
  const { pods, controllers = 0, restarts = 0, losses = 0, restores = 0, deletions = 0 } = bounds;
  const values = {
    PODS: pods,
    CONTROLLERS: controllers,
    RESTARTS: restarts,
    LOSSES: losses,
    RESTORES: restores,
    DELETIONS: deletions,
  };
  const flags = [bounds.lawless && "LAWLESS", bounds.live && "CALM", mutant].filter(Boolean);
  return [...Object.entries(values).map(([name, value]) => `-D${name}=${value}`), ...flags.map((flag) => `-D${flag}`)];
}

/** What the checker has printed. Throws when it did not look at everything. */
export function read(text: string): Verdict {
  const states = Number(/^\s*([\d.e+]+) states, stored/m.exec(text)?.[1] ?? Number.NaN);
  const assertion = /assertion violated (\w+)/.exec(text)?.[1];
  const unending = /acceptance cycle/.test(text) ? "INV_11_unfinished_work_is_noticed" : undefined;
  const broken = assertion ?? unending;
  if (broken !== undefined) return { broken, states };
  const whole =
    /errors: 0$/m.test(text) &&
    !/max search depth too small|out of memory|reached -DMEMLIM|Search not completed/.test(text);
  if (!whole || !Number.isFinite(states)) throw new Error(`spin did not look at every state:\n${text}`);
  return { broken: null, states };
}
