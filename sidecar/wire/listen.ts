/**
 * Where clients find the proxy: TCP, or a Unix socket in a directory, by the name that libpq looks for.
 *
 * Who reaches it is the job's application: nobody is asked for a password. A socket file is therefore its owner's alone
 * (0600) unless said otherwise; in a pod, whose containers may run as different users, the volume is the border.
 */
import { chmodSync, lstatSync, unlinkSync } from "node:fs";
import { connect, type Server } from "node:net";
import { type Endpoint, isUnixSocket, socketPath } from "../../fence/database.ts";

/** `host` is an address, or the directory of a Unix socket. */
export interface ListenAddress extends Endpoint {
  /** Permissions of a Unix socket. */
  readonly socketMode?: number;
}

const SOCKET_MODE = 0o600;

/** Rejects when the address is in use or not to be had. The file of a Unix socket goes away with the server. */
export async function listen(server: Server, address: ListenAddress): Promise<void> {
  if (!isUnixSocket(address)) return await listening(server, { host: address.host, port: address.port });
  const path = socketPath(address);
  try {
    await listening(server, { path });
  } catch (error) {
    if ((error as { code?: unknown }).code !== "EADDRINUSE" || !(await isAbandoned(path))) throw error;
    unlinkSync(path);
    await listening(server, { path });
  }
  chmodSync(path, address.socketMode ?? SOCKET_MODE);
}

function listening(server: Server, where: { host: string; port: number } | { path: string }): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once("error", reject);
    server.listen(where, () => {
      server.off("error", reject);
      resolve();
    });
  });
}

/** A socket whose process ended without removing it; never another kind of file, and never one that is served. */
async function isAbandoned(path: string): Promise<boolean> {
  if (!lstatSync(path).isSocket()) return false;
  return await new Promise((resolve) => {
    const socket = connect({ path });
    socket.once("connect", () => {
      socket.destroy();
      resolve(false);
    });
    socket.once("error", (error) => resolve((error as { code?: unknown }).code === "ECONNREFUSED"));
  });
}
