/**
 * Where clients find the proxy: TCP, or a Unix socket in a directory, by the name that libpq looks for.
 *
 * Who reaches it is the job's application: nobody is asked for a password. A socket file is therefore its owner's alone
 * (0600) unless said otherwise; in a pod, whose containers may run as different users, the volume is the border.
 */
import { type BigIntStats, chmodSync, lstatSync, unlinkSync } from "node:fs";
import { connect, type Server } from "node:net";
import { isMainThread } from "node:worker_threads";
import { type Endpoint, isUnixSocket, socketPath } from "../../fence/database.ts";

/** `host` is an address, or the directory of a Unix socket. */
export interface ListenAddress extends Endpoint {
  /** Permissions of a Unix socket. */
  readonly socketMode?: number;
}

const SOCKET_MODE = 0o600;
const OWNER_ONLY_MASK = 0o077;
/** Nobody listens; or the file is gone. */
const NOBODY_THERE = new Set<unknown>(["ECONNREFUSED", "ENOENT"]);

/** Rejects when the address is in use or not to be had. The file of a Unix socket goes away with the server. */
export async function listen(server: Server, address: ListenAddress): Promise<void> {
  if (!isUnixSocket(address)) return await listening(server, { host: address.host, port: address.port });
  const path = socketPath(address);
  for (;;) {
    try {
      await onlyOwner(() => listening(server, { path }));
      return chmodSync(path, address.socketMode ?? SOCKET_MODE);
    } catch (error) {
      if ((error as { code?: unknown }).code !== "EADDRINUSE") throw error;
      const found = lookAt(path);
      // Never another kind of file, and never one that is served.
      if (found && (!found.isSocket() || (await isServed(path)))) throw error;
      // While we asked, another that starts as we do may have put its own there. Nobody of this process can from here
      // on; another one would have to between two system calls.
      if (found && isSame(found, lookAt(path))) unlinkSync(path);
    }
  }
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

/**
 * What `create` creates before it returns is its owner's alone, whatever mask the program was started with. A thread
 * cannot set the mask: that of a sidecar serves its whole pod.
 */
function onlyOwner<T>(create: () => T): T {
  if (!isMainThread) return create();
  const before = process.umask(OWNER_ONLY_MASK);
  try {
    return create();
  } finally {
    process.umask(before);
  }
}

const lookAt = (path: string): BigIntStats | undefined => lstatSync(path, { bigint: true, throwIfNoEntry: false });

/** An inode's number may soon be another file's; the time of its last change is not. */
const isSame = (a: BigIntStats, b: BigIntStats | undefined): boolean => a.ino === b?.ino && a.ctimeNs === b.ctimeNs;

/** Not that of a process that ended without removing it. */
async function isServed(path: string): Promise<boolean> {
  return await new Promise((resolve) => {
    const socket = connect({ path });
    socket.once("connect", () => {
      socket.destroy();
      resolve(true);
    });
    socket.once("error", (error) => resolve(!NOBODY_THERE.has((error as { code?: unknown }).code)));
  });
}
