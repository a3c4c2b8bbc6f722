/** Where slow things are kept between runs, and where the local node keeps its state. */
import { homedir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

/** Root of this checkout. */
export const checkout = join(dirname(fileURLToPath(import.meta.url)), "..", "..");

/** Results that take minutes to make and depend on nothing but their inputs: binaries, images. Safe to delete. */
export function cacheDir(): string {
  if (process.env.FENCEDJOB_CACHE) return process.env.FENCEDJOB_CACHE;
  if (process.getuid?.() === 0) return "/var/cache/fencedjob";
  return join(process.env.XDG_CACHE_HOME || join(homedir(), ".cache"), "fencedjob");
}

/**
 * State of the local node. One fixed place: there is one local node per machine, whatever the checkout, and its sockets
 * must keep below the 108 bytes of a Unix socket path.
 */
export const localNodeDir = "/var/lib/fencedjob-node";
