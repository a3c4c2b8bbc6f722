/**
 * Real PostgreSQL servers for tests: the npm binaries (14, 16, 17, 18) and, where Debian's package is installed, 15.
 * Each server has its own data directory and a free port on loopback, and ends with `stop()`.
 */
import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { randomInt } from "node:crypto";
import {
  accessSync,
  chmodSync,
  chownSync,
  constants,
  cpSync,
  existsSync,
  mkdtempSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import pg from "pg";
import { endingWithParent } from "./serving.ts";

export type PostgresVersion = 14 | 15 | 16 | 17 | 18;

export interface TestPostgres {
  readonly version: PostgresVersion;
  readonly host: string;
  readonly port: number;
  readonly dataDir: string;
  /** Connection string of the superuser for `database`. */
  url(database?: string): string;
  /** Ends the server at once (`immediate`, as a crash) or after its sessions were ended (`fast`). */
  stop(mode?: "fast" | "immediate"): Promise<void>;
  /** Starts it again on the same port and data. */
  start(): Promise<void>;
  /** Ends it at once and removes its data. */
  remove(): Promise<void>;
}

export interface PostgresOptions {
  readonly version?: PostgresVersion;
  /** `name=value` settings for the server's command line. */
  readonly settings?: Readonly<Record<string, string>>;
  /** Address to listen on; loopback if absent. */
  readonly host?: string;
  /** Lines of pg_hba.conf; trust for everyone if absent. */
  readonly hba?: readonly string[];
  /** A copy of this data directory, made while its server is stopped, instead of a new one. */
  readonly copyOf?: string;
  /** Empty files in the data directory: `standby.signal`, `recovery.signal`. */
  readonly signals?: readonly string[];
}

const NOBODY = 65534;
/** Below the kernel's own, and below the node ports of a cluster. */
const PORT_MIN = 20_000;
const PORT_END = 30_000;
/** That draw ports at the same time, each from a part of its own: vitest numbers its workers from 1, and runs fewer. */
const DRAWERS = 8;
const root = join(dirname(fileURLToPath(import.meta.url)), "..");

/** Versions whose server can be started on this machine; the others with the reason. */
export function postgresVersions(): { found: PostgresVersion[]; missing: { version: PostgresVersion; why: string }[] } {
  const found: PostgresVersion[] = [];
  const missing: { version: PostgresVersion; why: string }[] = [];
  for (const version of [14, 15, 16, 17, 18] as const) {
    if (existsSync(join(installDir(version), "bin", "postgres"))) found.push(version);
    else
      missing.push({ version, why: version === 15 ? "Debian's package postgresql-15 is not installed" : "run npm ci" });
  }
  return { found, missing };
}

/**
 * 15 and 18, as far as they are here: for tests that need not run on each. 14 works as 15 does, and is near its end: the
 * fence's tests run on it, and of the proxy's those with `endsAnd14`.
 */
export function oldestAndNewest(): PostgresVersion[] {
  return postgresVersions().found.filter((version) => version === 15 || version === 18);
}

/** The same and 14, for which a test is to choose a part of its cases. */
export function endsAnd14(): PostgresVersion[] {
  return postgresVersions().found.filter((version) => version <= 15 || version === 18);
}

function installDir(version: PostgresVersion): string {
  return version === 15 ? "/usr/lib/postgresql/15" : join(root, "node_modules", `pg${version}`, "native");
}

export async function startPostgres(options: PostgresOptions = {}): Promise<TestPostgres> {
  const version = options.version ?? 18;
  const host = options.host ?? "127.0.0.1";
  const port = await freePort(host);
  const home = mkdtempSync(join(tmpdir(), `fencedjob-pg${version}-`));
  const bin = join(executableByNobody(installDir(version), home), "bin");
  const dataDir = join(home, "data");
  const asRoot = process.getuid?.() === 0;
  const identity = asRoot ? { uid: NOBODY, gid: NOBODY } : {};
  if (asRoot) {
    chmodSync(home, 0o755);
    chownSync(home, NOBODY, NOBODY);
  }
  const run = (program: string, ...args: string[]): unknown =>
    execFileSync(program, args, { ...identity, cwd: home, stdio: ["ignore", "ignore", "pipe"] });
  if (options.copyOf) run("cp", "-a", options.copyOf, dataDir);
  else run(join(bin, "initdb"), "-D", dataDir, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "-N");
  for (const signal of options.signals ?? []) run("touch", join(dataDir, signal));
  if (options.hba) writeFileSync(join(dataDir, "pg_hba.conf"), `${options.hba.join("\n")}\n`);
  const settings = {
    fsync: "off",
    listen_addresses: host,
    port: String(port),
    unix_socket_directories: "",
    ...options.settings,
  };
  let child: ChildProcess | undefined;

  const start = async (): Promise<void> => {
    const args = ["-D", dataDir, ...Object.entries(settings).flatMap(([name, value]) => ["-c", `${name}=${value}`])];
    const [program = "", ...rest] = endingWithParent([join(bin, "postgres"), ...args]);
    child = spawn(program, rest, { ...identity, cwd: home, stdio: ["ignore", "ignore", "pipe"] });
    let log = "";
    child.stderr?.on("data", (chunk: Buffer) => {
      log = (log + chunk.toString()).slice(-8192);
    });
    const server = child;
    await waitReady({
      host,
      port,
      dataDir,
      gone: () => server.exitCode !== null || server.signalCode !== null,
      log: () => log,
    });
  };
  const stop = async (mode: "fast" | "immediate" = "immediate"): Promise<void> => {
    const server = child;
    if (!server || server.exitCode !== null || server.signalCode !== null) return;
    const ended = new Promise<void>((resolve) => server.once("exit", () => resolve()));
    server.kill(mode === "fast" ? "SIGINT" : "SIGQUIT");
    await ended;
  };
  // A test process that dies must not leave a server behind; in an orderly end `remove` has been there before.
  const onExit = (): void => {
    child?.kill("SIGQUIT");
    rmSync(home, { recursive: true, force: true });
  };
  process.once("exit", onExit);
  await start();
  return {
    version,
    host,
    port,
    dataDir,
    url: (database = "postgres") => `postgres://postgres@${host}:${port}/${database}`,
    start,
    stop,
    remove: async () => {
      await stop();
      process.off("exit", onExit);
      rmSync(home, { recursive: true, force: true });
    },
  };
}

/** The npm binaries may lie under a directory that only root can enter; PostgreSQL refuses to run as root. */
function executableByNobody(dir: string, home: string): string {
  if (process.getuid?.() !== 0 || worldReadable(dir)) return dir;
  const copy = join(home, "install");
  cpSync(dir, copy, { recursive: true, verbatimSymlinks: true });
  return copy;
}

function worldReadable(path: string): boolean {
  try {
    execFileSync("ls", [path], { uid: NOBODY, gid: NOBODY, stdio: "ignore" });
    accessSync(path, constants.R_OK);
    return true;
  } catch {
    return false;
  }
}

/** Until just this server lets somebody in: on its port there may be another, for which it could not start. */
async function waitReady(server: {
  host: string;
  port: number;
  dataDir: string;
  gone: () => boolean;
  log: () => string;
}): Promise<void> {
  for (;;) {
    if (server.gone()) throw new Error(`PostgreSQL ended while starting:\n${server.log()}`);
    const client = new pg.Client({ host: server.host, port: server.port, user: "postgres", database: "postgres" });
    client.on("error", () => {});
    try {
      await client.connect();
      const { rows } = await client.query("SHOW data_directory");
      if (rows[0].data_directory === server.dataDir) return;
    } catch {
      // Not yet.
    } finally {
      await client.end().catch(() => {});
    }
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

/** By this process, which may bind them later, or once more: whose server is away for a moment finds its port as it was. */
const drawn = new Set<number>();

/**
 * A port that was free a moment ago. Drawn from outside of those that the kernel gives to whoever asks for any: between now
 * and its use it would else be the next proxy's of another test, and whoever comes to it the wrong one's client.
 */
export async function freePort(host = "127.0.0.1"): Promise<number> {
  const many = (PORT_END - PORT_MIN) / DRAWERS;
  const first = PORT_MIN + (Number(process.env.VITEST_POOL_ID ?? 0) % DRAWERS) * many;
  if (drawn.size > many / 2) drawn.clear();
  for (;;) {
    const port = randomInt(first, first + many);
    if (drawn.has(port)) continue;
    drawn.add(port);
    const server = createServer();
    const failed = await new Promise<{ code?: unknown } | undefined>((resolve) => {
      server.once("error", resolve).listen(port, host, () => resolve(undefined));
    });
    await new Promise<void>((resolve) => server.close(() => resolve()));
    if (!failed) return port;
    if (failed.code !== "EADDRINUSE") throw failed;
  }
}
