/**
 * Election of one process among several, by the lease protocol of the jobs: a campaign takes the Lease, a holder keeps it,
 * a permit says at each moment whether it may be acted on.
 *
 * Does NOT promise that only one acts: what the leader before had sent may arrive late (INV-9). It promises that nothing is
 * begun without a valid permit (INV-5), and that a loss disturbs nobody: the process stands by and campaigns again.
 */
import { Campaign, type CampaignParts, type Won } from "./campaign.ts";
import { Holder } from "./holder.ts";
import { Permit } from "./permit.ts";
import { assertElectionTiming } from "./timing.ts";

/** A time without interruption in which this process leads, or acts for the leader. */
export interface Term {
  /** Aborts at its end: what is under way is given up. */
  readonly signal: AbortSignal;
  /** Asked in front of each act, as a paused process wakes up late. */
  valid(): boolean;
}

export interface ElectionParts extends Omit<CampaignParts, "silent"> {
  /** A term begins. Returns how to end it: called when the permit is gone, or, `orderly`, while it is still valid. */
  readonly lead: (term: Term) => (orderly: boolean) => Promise<void>;
  /**
   * The leader has missed a renewal: what it should do is done for it until it is heard again, or somebody is elected. It may be at work
   * all the same, so this is for work that two may do at once. Returns how to end it.
   */
  readonly deputize: (term: Term) => () => Promise<void>;
}

/** After a fault of ours. */
const AGAIN_MS = 1_000;

interface Running extends Term {
  readonly end: (orderly: boolean) => Promise<void>;
  readonly abort: (why: Error) => void;
}

export class Election {
  readonly #parts: ElectionParts;
  readonly #campaign: Campaign;
  readonly #stop = new AbortController();
  #running: Promise<void> | undefined;
  #permit = new Permit();
  #term: Running | null = null;
  #ending: Promise<void> | null = null;
  #stopping = false;
  #cancelExpiry: () => void = () => {};
  #endDeputy: (() => Promise<void>) | null = null;

  constructor(parts: ElectionParts) {
    assertElectionTiming(parts.timing);
    this.#parts = parts;
    this.#campaign = new Campaign({ ...parts, silent: (silent) => void this.#hear(silent) });
  }

  start(): void {
    this.#running ??= this.#run();
  }

  leads(): boolean {
    return this.#term?.valid() ?? false;
  }

  /** Why nobody may lead, as far as this process knows. */
  get problem(): string | null {
    return this.#campaign.problem;
  }

  /** Ends the term in order, gives the Lease back. */
  async stop(): Promise<void> {
    this.#stopping = true;
    await this.#endTerm("the process ends", true);
    await this.#hear(false);
    this.#stop.abort(new Error("the process ends"));
    await this.#running;
  }

  async #run(): Promise<void> {
    const { signal } = this.#stop;
    const { clock, log } = this.#parts;
    while (!signal.aborted) {
      try {
        await this.#hold(await this.#campaign.win(signal), signal);
      } catch (error) {
        if (signal.aborted) return;
        log.error("the election failed; it begins anew", { error });
        await clock.sleep(AGAIN_MS, signal).catch(() => {});
      }
    }
  }

  async #hold({ grant, lease }: Won, signal: AbortSignal): Promise<void> {
    const { log, me } = this.#parts;
    const permit = new Permit();
    permit.open();
    this.#permit = permit;
    const holder = new Holder({
      ...this.#parts,
      permit,
      holder: grant.holder,
      report: () => "",
      confirmed: () => this.#confirmed(),
    });
    holder.found(lease);
    log.info("elected", { pod: me.pod, generation: grant.generation });
    await this.#hear(false);
    const why = await holder.hold(grant, signal);
    this.#cancelExpiry();
    if (why !== null) return this.#endTerm(why);
    await holder.release(grant);
  }

  /** Resolves when nothing is done for the leader any more, if it was heard. */
  async #hear(silent: boolean): Promise<void> {
    if (!silent || this.#stopping) {
      const end = this.#endDeputy;
      this.#endDeputy = null;
      await end?.();
    } else this.#endDeputy ??= this.#deputize();
  }

  #deputize(): () => Promise<void> {
    const over = new AbortController();
    const { log, deputize } = this.#parts;
    log.warn("the leader is silent; what it should do is done for it");
    const end = deputize({ signal: over.signal, valid: () => !over.signal.aborted });
    return async () => {
      over.abort(new Error("the leader was heard, or another one was elected"));
      await end().catch((error) => log.error("the end of acting for the leader failed", { error }));
    };
  }

  #confirmed(): void {
    if (this.#stopping) return;
    if (!this.#term && !this.#ending) this.#beginTerm();
    this.#watchExpiry();
  }

  #beginTerm(): void {
    const { clock, lead } = this.#parts;
    const ended = new AbortController();
    const permit = this.#permit;
    const term: Term = {
      signal: ended.signal,
      valid: () => !ended.signal.aborted && permit.state(clock.monoMs()) === "valid",
    };
    this.#term = { ...term, abort: (why) => ended.abort(why), end: lead(term) };
  }

  /** Nothing may be done without a permit, so nothing is kept under way either. */
  #watchExpiry(): void {
    const { clock } = this.#parts;
    this.#cancelExpiry();
    this.#cancelExpiry = clock.after(this.#permit.deadlineMs() - clock.monoMs(), () => {
      if (this.#permit.state(clock.monoMs()) === "valid") this.#watchExpiry();
      else void this.#endTerm("no renewal was confirmed in time");
    });
  }

  async #endTerm(why: string, orderly = false): Promise<void> {
    const term = this.#term;
    this.#term = null;
    if (term) {
      this.#parts.log[orderly ? "info" : "warn"]("leads no longer", { why });
      this.#ending = this.#finish(term, why, orderly);
    }
    await this.#ending;
  }

  async #finish(term: Running, why: string, orderly: boolean): Promise<void> {
    try {
      if (!orderly) term.abort(new Error(why));
      await term.end(orderly);
    } catch (error) {
      this.#parts.log.error("the end of a term failed", { error });
    } finally {
      term.abort(new Error(why));
      this.#ending = null;
    }
  }
}
