/** Where slow things are kept between runs, and where the local node keeps its state. */
import { readdirSync, rmSync, statSync } from "node:fs";
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

/** Versions of one thing that stay in the cache: so many checkouts can take turns without building again. */
const VERSIONS_MAX = 3;

/** Removes all but the newest of `<dir>/<name>-<hash>`, with or without an ending. */
export function pruneVersions(dir: string, name: string): void {
  const versions = readdirSync(dir)
    .filter((file) => file.startsWith(`${name}-`) && /^[0-9a-f]{12}(\.tar)?$/.test(file.slice(name.length + 1)))
    .map((file) => join(dir, file))
    .sort((a, b) => statSync(b).mtimeMs - statSync(a).mtimeMs);
  for (const old of versions.slice(VERSIONS_MAX)) rmSync(old, { recursive: true });
}
