/**
 * Long-running programs, each with a log and a pid file in one directory, so that a later command finds what an earlier one
 * started. Does NOT supervise: a program that dies stays dead and is reported as not running.
 */
import { spawn } from "node:child_process";
import {
  closeSync,
  existsSync,
  linkSync,
  mkdirSync,
  openSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { until } from "../../testing/until.ts";

export interface Daemon {
  readonly name: string;
  readonly command: readonly string[];
  readonly env?: Readonly<Record<string, string>>;
  /** Network namespace to run in, by its name under /var/run/netns; the host's if absent. */
  readonly netns?: string;
}

/** Longer than a cold build of everything. */
const LOCK_WAIT_MS_MAX = 1_800_000;

/** A process, told apart from a later one with the same pid: by its start and by the boot it belongs to. */
interface ProcessRecord {
  readonly pid: number;
  readonly startTicks: string;
  readonly bootId: string;
}

/**
 * Runs `act` while this process alone holds the lock `<dir>/<name>.pid`; waits, telling `say`, while another does. A holder that
 * died without giving it back does not count.
 */
export async function locked<T>(
  dir: string,
  name: string,
  say: (line: string) => void,
  act: () => Promise<T>,
): Promise<T> {
  mkdirSync(dir, { recursive: true });
  const path = pidPath(dir, name);
  const take = (): boolean => {
    const mine = pidPath(dir, `${name}.new.${process.pid}`);
    writeFileSync(mine, JSON.stringify(record(process.pid)));
    try {
      // A link appears with its content, and only where there is none.
      linkSync(mine, path);
      return true;
    } catch {
      if (runningPid(dir, name) === undefined) removeStale(dir, name);
      return false;
    } finally {
      rmSync(mine, { force: true });
    }
  };
  if (!take() && !take()) {
    say(`waiting for process ${runningPid(dir, name) ?? "(gone)"}, which is at it already (${path})`);
    await until(take, LOCK_WAIT_MS_MAX, { what: `lock ${path} is free`, failureEnds: true });
  }
  try {
    return await act();
  } finally {
    rmSync(path, { force: true });
  }
}

/** Two may find one stale lock: the one that moves it away looks again at what it moved, which may be the other's new lock. */
function removeStale(dir: string, name: string): void {
  const moved = `${name}.${process.pid}`;
  try {
    renameSync(pidPath(dir, name), pidPath(dir, moved));
    if (runningPid(dir, moved) !== undefined) linkSync(pidPath(dir, moved), pidPath(dir, name));
  } catch {
    // Somebody else was faster.
  } finally {
    rmSync(pidPath(dir, moved), { force: true });
  }
}

/** Starts it unless it runs. With `diesWithParent` the kernel ends it when the process that called this ends, however it ends. */
export function startDaemon(dir: string, daemon: Daemon, options: { diesWithParent?: boolean } = {}): void {
  if (isRunning(dir, daemon.name)) return;
  mkdirSync(dir, { recursive: true });
  const log = openSync(logPath(dir, daemon.name), "a");
  // Both wrappers end in exec: the pid is the program's own.
  const command = [
    ...(options.diesWithParent ? ["setpriv", "--pdeathsig", "KILL", "--"] : []),
    ...(daemon.netns === undefined ? [] : ["nsenter", `--net=/var/run/netns/${daemon.netns}`]),
    ...daemon.command,
  ];
  const [program = "", ...args] = command;
  const child = spawn(program, args, {
    detached: true,
    cwd: "/", // so that it keeps no directory of its caller
    env: { ...process.env, ...daemon.env },
    stdio: ["ignore", log, log],
  });
  child.on("error", () => {}); // shows as "not running", with the log
  child.unref();
  closeSync(log);
  if (child.pid === undefined) throw new Error(`${daemon.name}: ${program} cannot be started`);
  writeFileSync(pidPath(dir, daemon.name), JSON.stringify(record(child.pid)));
}

/** Ends it: SIGTERM, after `graceMs` SIGKILL, and returns when it is gone. */
export async function stopDaemon(dir: string, name: string, graceMs = 5_000): Promise<void> {
  const pid = runningPid(dir, name);
  if (pid !== undefined) {
    const gone = (): boolean => !isRunning(dir, name);
    process.kill(pid, "SIGTERM");
    await until(gone, graceMs).catch(async () => {
      if (!gone()) process.kill(pid, "SIGKILL");
      await until(gone, undefined, { what: `${name} ends after SIGKILL` });
    });
  }
  rmSync(pidPath(dir, name), { force: true });
}

export function isRunning(dir: string, name: string): boolean {
  return runningPid(dir, name) !== undefined;
}

export function runningPid(dir: string, name: string): number | undefined {
  if (!existsSync(pidPath(dir, name))) return undefined;
  const recorded = JSON.parse(readFileSync(pidPath(dir, name), "utf8")) as ProcessRecord;
  if (recorded.bootId !== bootId()) return undefined;
  const found = stat(recorded.pid);
  if (found?.startTicks !== recorded.startTicks) return undefined;
  // A zombie without other threads has ended, only whoever started it has not looked yet. One whose other threads still end
  // keeps its sockets and locks, and its memory may take a moment to give back.
  return found.state === "Z" && found.threads <= 1 ? undefined : recorded.pid;
}

/** Waits until `ready`; a program that ends meanwhile is reported at once, with the end of its log. */
export async function waitReady(
  dir: string,
  names: readonly string[],
  what: string,
  timeoutMs: number,
  ready: () => Promise<boolean>,
): Promise<void> {
  const check = async (): Promise<boolean> => {
    const dead = names.find((name) => !isRunning(dir, name));
    if (dead !== undefined) throw new Error(`${dead} ended while starting:\n${logTail(dir, dead)}`);
    return ready();
  };
  await until(check, timeoutMs, { what: `${what} (logs: ${dir})`, failureEnds: true });
}

export function logTail(dir: string, name: string, lines = 20): string {
  if (!existsSync(logPath(dir, name))) return "(no log)";
  return readFileSync(logPath(dir, name), "utf8").trimEnd().split("\n").slice(-lines).join("\n");
}

const logPath = (dir: string, name: string): string => join(dir, `${name}.log`);
const pidPath = (dir: string, name: string): string => join(dir, `${name}.pid`);
const record = (pid: number): ProcessRecord => ({ pid, startTicks: stat(pid)?.startTicks ?? "", bootId: bootId() });
const bootId = (): string => readFileSync("/proc/sys/kernel/random/boot_id", "utf8").trim();

function stat(pid: number): { state: string; threads: number; startTicks: string } | undefined {
  try {
    const text = readFileSync(`/proc/${pid}/stat`, "utf8");
    // The second field is the program's name in brackets and may contain anything.
    const fields = text.slice(text.lastIndexOf(")") + 2).split(" ");
    return { state: fields[0] ?? "", threads: Number(fields[17]), startTicks: fields[19] ?? "" };
  } catch {
    return undefined;
  }
}
