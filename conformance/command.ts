/** Runs a program to its end. */
import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { join } from "node:path";

export interface CommandOptions {
  readonly cwd?: string;
  readonly env?: Readonly<Record<string, string>>;
  readonly timeoutMs: number;
  /** With the whole environment of this process: for programs that build or download. */
  readonly inherit?: boolean;
  /** Answers a line of the program's output with a line of input. */
  readonly answer?: (line: string) => Promise<string | undefined>;
}

export interface Ended {
  /** Null when it was killed, for instance at its time's end. */
  readonly code: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

const OUTPUT_BYTES_MAX = 256 * 1024 * 1024;

/** Only PATH, HOME and the program's own environment: PG* variables of the machine are no part of a comparison. */
export function command(program: string, args: readonly string[], options: CommandOptions): Promise<Ended> {
  const { PATH = "", HOME = "/tmp", GOPROXY, GOFLAGS, GOMODCACHE, GOCACHE } = process.env;
  const go = Object.entries({ GOPROXY, GOFLAGS, GOMODCACHE, GOCACHE }).filter(([, value]) => value !== undefined);
  return new Promise((resolve, reject) => {
    const child = spawn(program, args, {
      ...(options.cwd === undefined ? {} : { cwd: options.cwd }),
      env: options.inherit ? process.env : { PATH, HOME, LC_ALL: "C.UTF-8", ...Object.fromEntries(go), ...options.env },
      stdio: [options.answer ? "pipe" : "ignore", "pipe", "pipe"],
      timeout: options.timeoutMs,
      killSignal: "SIGKILL",
    });
    const output = { stdout: "", stderr: "" };
    let unanswered = "";
    const take = (name: "stdout" | "stderr") => (chunk: string) => {
      output[name] += chunk;
      if (output[name].length > OUTPUT_BYTES_MAX) child.kill("SIGKILL");
      if (name === "stderr" || !options.answer) return;
      const lines = (unanswered + chunk).split("\n");
      unanswered = lines.pop() ?? "";
      for (const line of lines)
        void options.answer(line).then((reply) => reply && child.stdin?.write(`${reply}\n`), reject);
    };
    child.stdout?.setEncoding("utf8").on("data", take("stdout"));
    child.stderr?.setEncoding("utf8").on("data", take("stderr"));
    child.stdin?.on("error", () => {});
    child.once("error", reject);
    child.once("close", (code) => resolve({ code, ...output }));
  });
}

/** For what prepares: rejects with its last words when it fails. */
export async function endsWell(program: string, args: readonly string[], options: CommandOptions): Promise<Ended> {
  const ended = await command(program, args, options);
  if (ended.code === 0) return ended;
  const words = `${ended.stdout.slice(-2_000)}${ended.stderr.slice(-2_000)}`;
  throw new Error(`${program} ${args.join(" ")} failed:\n${words}`);
}

export const inPath = (program: string): boolean =>
  (process.env.PATH ?? "").split(":").some((dir) => existsSync(join(dir, program)));
