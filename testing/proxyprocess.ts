/** `fencedjob proxy` as a process of its own. */
import { join } from "node:path";
import { type DatabaseAddress, type Endpoint, isUnixSocket, socketPath } from "../fence/database.ts";
import { type Serving, startServing } from "./serving.ts";

export interface ProxyProcess extends Serving {
  readonly port: number;
}

export interface ProxyProcessOptions {
  /** Of the application's role, without a password. */
  readonly address: DatabaseAddress;
  readonly fenceName: string;
  readonly generation: number;
  /** Where it listens; a free port of loopback if absent. */
  readonly listen?: Endpoint;
  /** Shown to clients that ask for TLS; none if absent. */
  readonly certificate?: { readonly file: string; readonly keyFile: string };
  /** The command line; the sources' if absent. */
  readonly program?: string;
  /** Flags of Node.js itself. */
  readonly nodeFlags?: readonly string[];
}

const FENCEDJOB = join(import.meta.dirname, "..", "cli", "fencedjob.ts");

/** Raises the generation and listens. */
export async function startProxyProcess(options: ProxyProcessOptions): Promise<ProxyProcess> {
  const { host, port, user, database } = options.address;
  const url = `postgres://${user}@${host}:${port}/${database}?sslmode=disable`;
  const { listen = { host: "127.0.0.1", port: 0 }, certificate } = options;
  const where = isUnixSocket(listen) ? socketPath(listen) : `${listen.host}:${listen.port}`;
  const job = ["--job", options.fenceName, "--generation", String(options.generation)];
  const tls = certificate ? ["--tls-cert", certificate.file, "--tls-key", certificate.keyFile] : [];
  const command = [options.program ?? FENCEDJOB, "proxy", "--database-url", url, ...job, "--listen", where, ...tls];
  const serving = await startServing(process.execPath, [...(options.nodeFlags ?? []), ...command], {
    ready: isUnixSocket(listen) ? /listening on / : /listening on \S*:(\d+)/,
  });
  return { ...serving, port: Number(serving.said[1] ?? listen.port) };
}
