/** The ways to the server that are compared, each a process of its own, in front of the same server and role. */
import { chmodSync, existsSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { bundleProgram } from "../scripts/bundle.ts";
import { freePort } from "../testing/postgres.ts";
import { startProxyProcess } from "../testing/proxyprocess.ts";
import { type Serving, startServing } from "../testing/serving.ts";
import { type Sockets, type TargetName, targetKey } from "./cells.ts";
import type { Ground } from "./ground.ts";
import type { Place } from "./pgbenchrun.ts";

export interface Target extends Place {
  /** Of its figures. */
  readonly key: string;
  /** Its process; absent for `direct`. */
  readonly pid: number | undefined;
  stop(): Promise<void>;
}

const PGBOUNCER = "/usr/sbin/pgbouncer";
const NOBODY = 65534;
const FENCE_NAME = "bench/wire";

/** Why a target cannot be measured on this machine; null when it can. */
export function targetMissing(name: TargetName): string | null {
  if (name === "pgbouncer" && !existsSync(PGBOUNCER)) return "PgBouncer is not installed (apt-get install pgbouncer)";
  return null;
}

/** Starts the targets one after the other; on a failure those that were started are stopped. */
export async function startTargets(
  ground: Ground,
  wanted: readonly { readonly name: TargetName; readonly sockets: Sockets }[],
): Promise<{ targets: Target[]; stop(): Promise<void> }> {
  const targets: Target[] = [];
  const scratch = mkdtempSync(join(tmpdir(), "fencedjob-bench-"));
  // PgBouncer reads its configuration there, as another user.
  chmodSync(scratch, 0o755);
  const stop = async (): Promise<void> => {
    for (const target of targets) await target.stop();
    rmSync(scratch, { recursive: true, force: true });
  };
  try {
    if (wanted.some(({ name }) => name === "fenced")) await bundleProgram(join(scratch, "dist"));
    for (const { name, sockets } of wanted) {
      const start = { direct, pgbouncer, pipe: control, unfenced: control, fenced }[name];
      const started = await start({ ground, scratch, name, sockets });
      const { user, database } = ground.address;
      targets.push({ stop: async () => {}, ...started, user, database, key: targetKey(name, sockets) });
    }
    return { targets, stop };
  } catch (error) {
    await stop();
    throw error;
  }
}

interface Wanted {
  readonly ground: Ground;
  readonly scratch: string;
  readonly name: TargetName;
  readonly sockets: Sockets;
}

interface Started {
  readonly host: string;
  readonly port: number;
  readonly pid: number | undefined;
  stop?(): Promise<void>;
}

/** Where a target with a port of its own is met. */
const hostOf = ({ ground, sockets }: Wanted): string => (sockets === "unix" ? ground.socketDir : "127.0.0.1");
const socketFile = (ground: Ground, port: number): string => join(ground.socketDir, `.s.PGSQL.${port}`);

async function direct(wanted: Wanted): Promise<Started> {
  return { host: hostOf(wanted), port: wanted.ground.address.port, pid: undefined };
}

async function control(wanted: Wanted): Promise<Started> {
  const { ground, name, sockets } = wanted;
  const port = await freePort();
  const where = sockets === "unix" ? socketFile(ground, port) : String(port);
  const args = [join(import.meta.dirname, `${name}.ts`), ground.address.host, String(ground.address.port), where];
  return { ...running(await startServing(process.execPath, args, { ready: /listening/ })), host: hostOf(wanted), port };
}

/** A generation of its own for each, as each is the owner of a job of its own. */
async function fenced(wanted: Wanted): Promise<Started> {
  const { ground, scratch, sockets } = wanted;
  const proxy = await startProxyProcess({
    address: ground.address,
    fenceName: `${FENCE_NAME}-${sockets}`,
    generation: 1,
    program: join(scratch, "dist", "fencedjob.js"),
  });
  return { ...proxy, host: hostOf(wanted) };
}

async function pgbouncer(wanted: Wanted): Promise<Started> {
  const { ground, scratch, sockets } = wanted;
  const { host, port, user, database } = ground.address;
  const listenPort = await freePort();
  const users = join(scratch, "users.txt");
  writeFileSync(users, `"${user}" ""\n`);
  const lines = [
    "[databases]",
    `${database} = host=${host} port=${port} dbname=${database} user=${user}`,
    "[pgbouncer]",
    "pool_mode = session",
    ...(sockets === "tcp"
      ? ["listen_addr = 127.0.0.1", "unix_socket_dir ="]
      : [`unix_socket_dir = ${ground.socketDir}`]),
    `listen_port = ${listenPort}`,
    "auth_type = trust",
    `auth_file = ${users}`,
    "max_client_conn = 200",
    "default_pool_size = 100",
    "log_connections = 0",
    "log_disconnections = 0",
  ];
  const file = join(scratch, `pgbouncer-${sockets}.ini`);
  writeFileSync(file, `${lines.join("\n")}\n`);
  // It refuses to run as root.
  const identity = process.getuid?.() === 0 ? { uid: NOBODY, gid: NOBODY } : {};
  const serving = await startServing(PGBOUNCER, [file], { ready: /process up/, ...identity });
  return { ...running(serving), host: hostOf(wanted), port: listenPort };
}

const running = ({ pid, stop }: Serving): { pid: number; stop(): Promise<void> } => ({ pid, stop });
