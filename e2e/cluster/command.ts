/** Runs a program to its end. */
import { spawn } from "node:child_process";

export interface CommandOptions {
  readonly cwd?: string;
  readonly env?: Readonly<Record<string, string>>;
  readonly input?: string;
  /** The program is killed after this; no limit if absent. */
  readonly timeoutMs?: number;
}

export class CommandError extends Error {
  override readonly name = "CommandError";
  readonly exitCode: number | null;
  readonly stdout: string;
  readonly stderr: string;
  constructor(command: readonly string[], exitCode: number | null, stdout: string, stderr: string) {
    const said = stderr.trim() || stdout.trim();
    super(`${command.join(" ")}: ${exitCode === null ? "killed" : `exit code ${exitCode}`}${said ? `\n${said}` : ""}`);
    this.exitCode = exitCode;
    this.stdout = stdout;
    this.stderr = stderr;
  }
}

/** Standard output of the program; throws CommandError when it does not end with 0. */
export async function run(command: readonly string[], options: CommandOptions = {}): Promise<string> {
  const [program, ...args] = command;
  if (program === undefined) throw new Error("run: no program named");
  const child = spawn(program, args, {
    ...(options.cwd === undefined ? {} : { cwd: options.cwd }),
    env: { ...process.env, ...options.env },
    stdio: ["pipe", "pipe", "pipe"],
    ...(options.timeoutMs === undefined ? {} : { timeout: options.timeoutMs, killSignal: "SIGKILL" as const }),
  });
  const out: Buffer[] = [];
  const err: Buffer[] = [];
  child.stdout.on("data", (chunk: Buffer) => out.push(chunk));
  child.stderr.on("data", (chunk: Buffer) => err.push(chunk));
  child.stdin.on("error", () => {}); // a program may end without having read its input
  child.stdin.end(options.input ?? "");
  const exitCode = await new Promise<number | null>((resolve, reject) => {
    child.once("error", reject);
    child.once("close", (code) => resolve(code));
  });
  const stdout = Buffer.concat(out).toString();
  if (exitCode !== 0) throw new CommandError(command, exitCode, stdout, Buffer.concat(err).toString());
  return stdout;
}

/** Whether the program ends with 0. */
export async function succeeds(command: readonly string[], options: CommandOptions = {}): Promise<boolean> {
  return run(command, options).then(
    () => true,
    () => false,
  );
}
