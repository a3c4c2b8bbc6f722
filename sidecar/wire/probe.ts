/**
 * Opens one session as the application's will be opened, and closes it: a role that cannot be fenced, or a pooler in
 * between, is then found before the application starts, and not by its first connection.
 */
import type { DatabaseAddress, FenceIdentity } from "../../fence/database.ts";
import { sessionStartSteps } from "../../fence/enter.ts";
import type { Clock } from "../../platform/clock.ts";
import type { Random } from "../../platform/random.ts";
import { errorFields } from "./messages.ts";
import { planStartup } from "./startup.ts";
import { NotAdmitted, openUpstream } from "./upstream.ts";

export interface ProbeFailure {
  /** SQLSTATE, of class LF where we know what it means. */
  readonly code: string;
  readonly message: string;
  readonly hint: string;
}

const PROBE_MS_MAX = 10_000;

/** null when a session is admitted. */
export async function probeSession(
  address: DatabaseAddress,
  jobId: number,
  identity: FenceIdentity,
  world: { readonly clock: Clock; readonly random: Random; readonly signal: AbortSignal },
): Promise<ProbeFailure | null> {
  const startup = { minor: 0, parameters: [["application_name", "fencedjob probe"]] as const };
  try {
    const { channel } = await openUpstream({
      ...world,
      address,
      startup: planStartup(startup, address.user, address.database).toServer,
      steps: sessionStartSteps(jobId, identity),
      timeoutMs: PROBE_MS_MAX,
    });
    channel.destroy();
    return null;
  } catch (error) {
    if (!(error instanceof NotAdmitted)) throw error;
    const fields = errorFields(error.bytes, 0, error.bytes.length);
    const message = [fields.get("M"), fields.get("D")].filter(Boolean).join(" ");
    return { code: fields.get("C") ?? "", message, hint: fields.get("H") ?? "" };
  }
}
