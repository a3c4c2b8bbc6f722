/** What the programs of the bench have in common: the server they need, and what they say when they cannot run. */
import { pgbenchMissing } from "../conformance/pgbench.ts";
import { postgresVersions } from "../testing/postgres.ts";
import { type Ground, POSTGRES, SCALE, startGround } from "./ground.ts";
import { machineFacts } from "./machine.ts";
import type { RunFacts } from "./results.ts";

export const say = (line: string): void => console.log(line);

/** Runs `measure` on a server of its own; the exit code is 1 when it cannot or fails, with the reason. */
export async function onGround(measure: (ground: Ground, facts: RunFacts) => Promise<void>): Promise<void> {
  const missing = prerequisiteMissing();
  if (missing) return failed(missing);
  try {
    const startedAt = new Date().toISOString();
    const ground = await startGround();
    try {
      const machine = { ...machineFacts(), postgres: ground.serverVersion };
      await measure(ground, { startedAt, machine, postgresSettings: ground.settings, scale: SCALE });
    } finally {
      await ground.stop();
    }
  } catch (error) {
    failed(error instanceof Error ? (error.stack ?? error.message) : String(error));
  }
}

export function failed(why: string): void {
  console.error(why);
  process.exitCode = 1;
}

/** Without these there is nothing to compare. */
function prerequisiteMissing(): string | null {
  if (pgbenchMissing())
    return "The bench needs pgbench. Install it (apt-get install postgresql-contrib) and run again.";
  const server = postgresVersions().missing.find(({ version }) => version === POSTGRES);
  return server ? `The bench needs PostgreSQL ${POSTGRES}: ${server.why}. Install it and run again.` : null;
}
