/** The ways to the server that are compared, each a process of its own, in front of the same server and role. */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";
import { socketPath } from "../fence/database.ts";
import { bundleProgram } from "../scripts/bundle.ts";
import { pgbouncerMissing, startPgbouncer } from "../testing/pgbouncer.ts";
import { freePort } from "../testing/postgres.ts";
import { startProxyProcess } from "../testing/proxyprocess.ts";
import { startServing } from "../testing/serving.ts";
import { type Sockets, type TargetName, targetKey } from "./cells.ts";
import type { Ground } from "./ground.ts";
import type { Place } from "./pgbenchrun.ts";

export interface Target extends Place {
  /** Of its figures. */
  readonly key: string;
  /** Its process; absent for `direct`. */
  readonly pid: number | undefined;
  /** What its process said last; for when it fails. */
  lastWords(): string;
  stop(): Promise<void>;
}

/** Why a target cannot be measured on this machine; null when it can. */
export function targetMissing({ name }: WantedTarget): string | null {
  return name === "pgbouncer" ? pgbouncerMissing() : null;
}

export interface WantedTarget {
  readonly name: TargetName;
  readonly sockets: Sockets;
  /** Flags of Node.js, for the targets that are run by it. */
  readonly nodeFlags?: readonly string[];
}

/** Starts the targets one after the other; on a failure those that were started are stopped. */
export async function startTargets(
  ground: Ground,
  wanted: readonly WantedTarget[],
): Promise<{ targets: Target[]; stop(): Promise<void> }> {
  const targets: Target[] = [];
  const scratch = mkdtempSync(join(tmpdir(), "fencedjob-bench-"));
  const stop = async (): Promise<void> => {
    for (const target of targets) await target.stop();
    rmSync(scratch, { recursive: true, force: true });
  };
  try {
    if (wanted.some(({ name }) => name === "fenced")) await bundleProgram(join(scratch, "dist"));
    for (const one of wanted) {
      const start = { direct, pgbouncer, pipe: control, unfenced: control, fenced }[one.name];
      const started = await start({ ...one, ground, scratch });
      const { user, database } = ground.address;
      targets.push({ ...started, user, database, key: targetKey(one.name, one.sockets) });
    }
    return { targets, stop };
  } catch (error) {
    await stop();
    throw error;
  }
}

interface Wanted extends WantedTarget {
  readonly ground: Ground;
  readonly scratch: string;
}

type Started = Omit<Target, "key" | "user" | "database">;

/** Where a target with a port of its own is met. */
const hostOf = ({ ground, sockets }: Wanted): string => (sockets === "unix" ? ground.socketDir : "127.0.0.1");

async function direct(wanted: Wanted): Promise<Started> {
  return {
    host: hostOf(wanted),
    port: wanted.ground.address.port,
    pid: undefined,
    lastWords: () => "",
    stop: async () => {},
  };
}

async function control(wanted: Wanted): Promise<Started> {
  const { ground, name, sockets } = wanted;
  const port = await freePort();
  const where = sockets === "unix" ? socketPath({ host: ground.socketDir, port }) : String(port);
  const { host, port: serverPort } = ground.address;
  const flags = wanted.nodeFlags ?? [];
  const args = [...flags, join(import.meta.dirname, `${name}.ts`), host, String(serverPort), where];
  return { ...(await startServing(process.execPath, args, { ready: /listening/ })), host: hostOf(wanted), port };
}

/** Those of the Dockerfile's entry point. */
const IMAGE_FLAGS = ["--max-semi-space-size=1"];

/** A generation of its own for each, as each is the owner of a job of its own. */
async function fenced(wanted: Wanted): Promise<Started> {
  const { ground, scratch, sockets } = wanted;
  const proxy = await startProxyProcess({
    address: ground.address,
    fenceName: `bench/${basename(scratch)}-${sockets}`,
    generation: 1,
    program: join(scratch, "dist", "fencedjob.js"),
    nodeFlags: [...IMAGE_FLAGS, ...(wanted.nodeFlags ?? [])],
    listen: { host: hostOf(wanted), port: await freePort() },
  });
  return { ...proxy, host: hostOf(wanted) };
}

async function pgbouncer(wanted: Wanted): Promise<Started> {
  const { ground, sockets } = wanted;
  const where = sockets === "unix" ? { listen_addr: "", unix_socket_dir: ground.socketDir } : {};
  const pooler = await startPgbouncer(ground.address, {
    pool_mode: "session",
    max_client_conn: 200,
    default_pool_size: 100,
    log_connections: 0,
    log_disconnections: 0,
    ...where,
  });
  return { ...pooler, host: hostOf(wanted) };
}
