/**
 * Opens two sessions as the application's will be opened, and closes them: a role that cannot be fenced, or a pooler in
 * transaction mode, is then found before the application starts, and not by its first connection.
 *
 * Does NOT find a pooler that keeps two idle connections apart by chance: each later session looks once more, by itself.
 */
import type { DatabaseAddress, FenceIdentity } from "../../fence/database.ts";
import { type SessionStartStep, sessionStartSteps } from "../../fence/enter.ts";
import type { Clock } from "../../platform/clock.ts";
import type { Random } from "../../platform/random.ts";
import { errorFields } from "./messages.ts";
import { planStartup } from "./startup.ts";
import { NotAdmitted, openUpstream, type Upstream } from "./upstream.ts";

export interface ProbeFailure {
  /** SQLSTATE, of class LF where we know what it means. */
  readonly code: string;
  readonly message: string;
  readonly hint: string;
}

const PROBE_MS_MAX = 10_000;

/** Fails in the second session when that is the first one's server session, which nobody has left yet. */
const MARK: SessionStartStep = {
  sql: "PREPARE _fencedjob_probe AS SELECT",
  expect: "success",
  onUnexpected: "LF014",
};

/** null when both sessions are admitted. */
export async function probeSession(
  address: DatabaseAddress,
  { jobId, incarnation }: { readonly jobId: number; readonly incarnation: string },
  identity: FenceIdentity,
  world: { readonly clock: Clock; readonly random: Random; readonly signal: AbortSignal },
): Promise<ProbeFailure | null> {
  const parameters = [
    ["user", address.user],
    ["application_name", "fencedjob probe"],
  ] as const;
  const plan = planStartup({ minor: 0, parameters }, address.user, address.database);
  const open = (): Promise<Upstream> =>
    openUpstream({
      ...world,
      address,
      startup: plan.toServer,
      poolerStartup: plan.toPooler,
      steps: [...sessionStartSteps(jobId, identity, incarnation), MARK],
      timeoutMs: PROBE_MS_MAX,
    });
  let first: Upstream | undefined;
  try {
    first = await open();
    (await open()).channel.destroy();
    return null;
  } catch (error) {
    if (!(error instanceof NotAdmitted)) throw error;
    const fields = errorFields(error.bytes, 0, error.bytes.length);
    const message = [fields.get("M"), fields.get("D")].filter(Boolean).join(". ");
    return { code: fields.get("C") ?? "", message, hint: fields.get("H") ?? "" };
  } finally {
    first?.channel.destroy();
  }
}
