/**
 * What a candidate tries before it owns anything: whether each database lets it in. A Secret that is missing or a password
 * that has changed is told while there is still an owner, and a takeover does not pay for a process's first connection.
 *
 * Does NOT raise, keeps no connection, and promises nothing: the raise tries everything again.
 */
import { readFence } from "../fence/client.ts";
import { toFenceError } from "../fence/errors.ts";
import type { SidecarConfig, SidecarDatabase } from "../lease/sidecarconfig.ts";
import type { Clock } from "../platform/clock.ts";
import type { Logger } from "../platform/log.ts";
import type { DatabaseAccess } from "./raiser.ts";

export interface RehearsalParts {
  readonly config: SidecarConfig;
  readonly clock: Clock;
  readonly log: Logger;
  readonly databases: DatabaseAccess;
  /** What stands in the way, in words; null when nothing does. */
  readonly tell: (problem: string | null) => void;
}

/** A pod that is granted as soon as it is there has no time for it. */
const AFTER_MS = 1_000;
const AGAIN_MS = 5_000;

/** Until every database was reached once; rejects when `signal` aborts, which the grant does. */
export async function rehearse(parts: RehearsalParts, signal: AbortSignal): Promise<void> {
  const { config, clock, log, tell } = parts;
  await clock.sleep(AFTER_MS, signal);
  for (;;) {
    const problems = await Promise.all(config.databases.map((database) => problemOf(parts, database)));
    signal.throwIfAborted();
    const told = problems.flatMap((problem) => problem ?? []).join("; ") || null;
    tell(told);
    if (told === null) return;
    log.warn("if this pod were granted the job now, its application would not get its database", { problem: told });
    await clock.sleep(AGAIN_MS, signal);
  }
}

async function problemOf(
  { config, clock, databases }: RehearsalParts,
  { name, dir, secretName }: SidecarDatabase,
): Promise<string | null> {
  const credentials = databases.credentials(dir);
  if (!credentials.ok) return `database "${name}": Secret "${secretName}" gives no address: ${credentials.problem}`;
  try {
    await readFence(credentials.address, config.fenceName, { clock, connect: databases.connect });
    return null;
  } catch (error) {
    const { code, message, detail } = toFenceError(error, credentials.address, "reading the fence");
    return `database "${name}": ${[code, message, detail].filter(Boolean).join(" ")}`;
  }
}
