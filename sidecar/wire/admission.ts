/** Whether a client may have a session of a raised generation, and how it gets one. */
import type { DatabaseAddress, FenceIdentity } from "../../fence/database.ts";
import { sessionStartSteps } from "../../fence/enter.ts";
import type { Witness } from "../../fence/witness.ts";
import type { Clock } from "../../platform/clock.ts";
import type { Random } from "../../platform/random.ts";
import { errorBytes, lostError, notSupported, type WireError } from "./errors.ts";
import type { StartupPlan } from "./startup.ts";
import { NotAdmitted, openUpstream, type Upstream } from "./upstream.ts";
import { isLoss, type VerdictReader } from "./verdict.ts";

/** A raised generation in its database: what clients are given sessions of. */
export interface RaisedGeneration {
  readonly address: DatabaseAddress;
  readonly jobId: number;
  /** History in which it was raised: no session is opened in another one. */
  readonly incarnation: string;
  readonly identity: FenceIdentity;
  /** Of the raise; absent where no heartbeats are kept. */
  readonly witness?: Witness | undefined;
}

/** The same, and who says whether it is over. */
export interface Served extends RaisedGeneration {
  /** Of the last heartbeat that was confirmed: sessions are admitted only where it stands. */
  readonly confirmed?: () => Witness | undefined;
  readonly verdict: VerdictReader;
}

export interface SessionStart {
  readonly clock: Clock;
  readonly random: Random;
  readonly timeoutMs: number;
  readonly signal: AbortSignal;
}

/** Why a client that asks for this gets no session here, whoever owns the job. */
export function wrongStartup(plan: StartupPlan, { database }: DatabaseAddress): WireError | undefined {
  if (!plan.namesUser) {
    return { severity: "FATAL", code: "28000", message: "no PostgreSQL user name specified in startup packet" };
  }
  if (plan.replication) return notSupported("replication connections", "Connect to the database directly.");
  if (plan.database === undefined || plan.database === database) return undefined;
  return {
    severity: "FATAL",
    code: "3D000",
    message: `this port leads to database "${database}", not to "${plan.database}"`,
    hint: `Connect with dbname=${database}; each database of the job has a port of its own.`,
  };
}

/** A server session that has entered; throws NotAdmitted (a loss with the words for it), or the signal's reason. */
export async function openAdmitted(served: Served, plan: StartupPlan, start: SessionStart): Promise<Upstream> {
  const { address, jobId, identity, incarnation } = served;
  try {
    return await openUpstream({
      ...start,
      address,
      startup: plan.toServer,
      poolerStartup: plan.toPooler,
      steps: sessionStartSteps(jobId, identity, incarnation, served.confirmed?.()),
    });
  } catch (error) {
    if (!(error instanceof NotAdmitted) || !error.byGate) throw error;
    const verdict = await served.verdict(false);
    if (!isLoss(verdict)) throw error;
    const lost = lostError(identity, verdict, false);
    throw new NotAdmitted(lost.code, lost.message, errorBytes(lost), { byLoss: true });
  }
}
