/** A program that serves until it is stopped, as a process of its own: for what compares or measures it from outside. */
import { type ChildProcess, spawn } from "node:child_process";
import { existsSync } from "node:fs";

export interface Serving {
  readonly pid: number;
  /** What it said when it was ready: the match of `ready`. */
  readonly said: RegExpExecArray;
  /** The last it wrote to standard error. */
  lastWords(): string;
  /** SIGKILL as a crash, SIGSTOP and SIGCONT as a pause. */
  signal(name: NodeJS.Signals): void;
  /** How it ended: exit code or signal. */
  readonly ended: Promise<number | string | null>;
  /** SIGTERM, and SIGKILL if that is not enough; resolves when it has ended. */
  stop(): Promise<void>;
}

export interface ServingOptions {
  /** Found in its standard error once it serves. */
  readonly ready: RegExp;
  readonly cwd?: string;
  /** Beside this process's. */
  readonly env?: Readonly<Record<string, string | undefined>>;
  /** Whom it runs as, if not as this process. */
  readonly uid?: number;
  readonly gid?: number;
}

const READY_MS_MAX = 120_000;
const STOP_MS_MAX = 60_000;
const WORDS_KEPT = 8_192;

const SETPRIV = "/usr/bin/setpriv";

/** The same command, such that the kernel ends it when this process ends, however that ends (where setpriv is installed). */
export function endingWithParent(command: readonly string[]): string[] {
  return [...(existsSync(SETPRIV) ? [SETPRIV, "--pdeathsig", "QUIT", "--"] : []), ...command];
}

/** Rejects with the program's own words when it ends, or is not ready in time. */
export async function startServing(
  program: string,
  args: readonly string[],
  options: ServingOptions,
): Promise<Serving> {
  const { ready, env, ...spawned } = options;
  const [first = program, ...rest] = endingWithParent([program, ...args]);
  const child = spawn(first, rest, {
    ...spawned,
    env: { ...process.env, ...env },
    stdio: ["ignore", "ignore", "pipe"],
  });
  const onExit = (): boolean => child.kill("SIGKILL");
  process.once("exit", onExit);
  const ended = new Promise<number | string | null>((resolve) =>
    child.once("close", (code, signal) => resolve(code ?? signal)),
  );
  const stop = async (): Promise<void> => {
    process.off("exit", onExit);
    child.kill("SIGTERM");
    const killing = setTimeout(() => child.kill("SIGKILL"), STOP_MS_MAX);
    await ended;
    clearTimeout(killing);
  };
  let words = "";
  child.stderr?.on("data", (chunk: Buffer) => {
    words = (words + chunk.toString()).slice(-WORDS_KEPT);
  });
  const lastWords = (): string => words;
  try {
    const said = await untilReady(child, ready, lastWords);
    const signal = (name: NodeJS.Signals): boolean => child.kill(name);
    return { pid: child.pid ?? 0, said, lastWords, ended, signal, stop };
  } catch (error) {
    await stop();
    throw error;
  }
}

function untilReady(child: ChildProcess, ready: RegExp, lastWords: () => string): Promise<RegExpExecArray> {
  return new Promise((resolve, reject) => {
    const fail = (why: string): void => reject(new Error(`${child.spawnargs.join(" ")} ${why}:\n${lastWords()}`));
    const giveUp = setTimeout(() => fail("did not start in time"), READY_MS_MAX);
    child.stderr?.on("data", () => {
      const said = ready.exec(lastWords());
      if (!said) return;
      clearTimeout(giveUp);
      resolve(said);
    });
    child.once("error", (error) => fail(`cannot be run: ${error.message}`));
    child.once("close", () => {
      clearTimeout(giveUp);
      fail("ended");
    });
  });
}
