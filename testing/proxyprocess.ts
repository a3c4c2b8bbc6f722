/** `fencedjob proxy` as a process of its own. */
import { join } from "node:path";
import type { DatabaseAddress } from "../fence/database.ts";
import { type Serving, startServing } from "./serving.ts";

export interface ProxyProcess extends Serving {
  readonly port: number;
}

export interface ProxyProcessOptions {
  /** Of the application's role, without a password. */
  readonly address: DatabaseAddress;
  readonly fenceName: string;
  readonly generation: number;
  /** The command line; the sources' if absent. */
  readonly program?: string;
  /** Flags of Node.js itself. */
  readonly nodeFlags?: readonly string[];
}

const FENCEDJOB = join(import.meta.dirname, "..", "cli", "fencedjob.ts");

/** Raises the generation and listens on a free port of loopback. */
export async function startProxyProcess(options: ProxyProcessOptions): Promise<ProxyProcess> {
  const { host, port, user, database } = options.address;
  const url = `postgres://${user}@${host}:${port}/${database}?sslmode=disable`;
  const job = ["--job", options.fenceName, "--generation", String(options.generation)];
  const command = [options.program ?? FENCEDJOB, "proxy", "--database-url", url, ...job, "--listen", "127.0.0.1:0"];
  const serving = await startServing(process.execPath, [...(options.nodeFlags ?? []), ...command], {
    ready: /listening on \S*:(\d+)/,
  });
  return { ...serving, port: Number(serving.said[1]) };
}
