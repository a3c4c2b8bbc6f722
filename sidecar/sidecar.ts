/**
 * The sidecar's life: listen and hold whoever connects, wait for the grant, renew, raise, serve until the pod ends, close,
 * give the Lease back. Or, in a pod that only closes: raise, close, give it back, and end.
 *
 * Invariants: nobody is served before the raise has committed in every database, and the application's process is not
 * started before that unless its spec says so (INV-4); a loss is final for this pod (INV-7). The process never exits while
 * it waits or after a loss: the kubelet would start it again, and the application could not read why it is refused.
 */
import type { FenceIdentity } from "../fence/database.ts";
import type { LeaseApi } from "../lease/client.ts";
import { Holder } from "../lease/holder.ts";
import { Permit } from "../lease/permit.ts";
import type { Grant } from "../lease/record.ts";
import { formatReport, type LastWords, parseReport } from "../lease/report.ts";
import type { SidecarConfig, SidecarDatabase } from "../lease/sidecarconfig.ts";
import { assertTiming } from "../lease/timing.ts";
import type { Clock } from "../platform/clock.ts";
import type { Logger } from "../platform/log.ts";
import { whenAborted } from "../platform/pause.ts";
import type { Random } from "../platform/random.ts";
import { type HeartbeatParts, keepBeating } from "./heartbeat.ts";
import type { startSidecarServer } from "./http.ts";
import { type DatabaseAccess, type RaisedDatabase, Raiser } from "./raiser.ts";
import { rehearse } from "./rehearsal.ts";
import { neverServed } from "./wire/errors.ts";
import type { startWire, Wire } from "./wire/thread.ts";
import { Wires } from "./wires.ts";

export interface SidecarParts {
  readonly config: SidecarConfig;
  readonly pod: { readonly name: string; readonly uid: string };
  readonly api: LeaseApi;
  readonly clock: Clock;
  readonly random: Random;
  readonly log: Logger;
  readonly databases: DatabaseAccess;
  readonly startWire: typeof startWire;
  readonly startServer: typeof startSidecarServer;
  /** Leaves the container's termination message; may throw. */
  readonly leaveLastWords: (words: LastWords) => void;
}

const WAITING = "waiting for ownership";
const NONCE_BYTES = 16;
/** Of the close at the end: the next raise does the same, so that the release need not be held up for longer. */
const CLOSE_MS_MAX = 4_000;
const CLOSE_RETRY_MS = 1_000;
const REFUSED = "a database refused this generation for good; the pod is replaced";

export class Sidecar {
  readonly #parts: SidecarParts;
  readonly #permit = new Permit();
  readonly #wires: Wires;
  readonly #holder: Holder;
  /** The thread of a wire has died before anybody was served: this process begins anew. */
  readonly #broken = new AbortController();
  #grant: Grant | null = null;
  #raiser: Raiser | null = null;
  #raised: readonly RaisedDatabase[] = [];
  /** Of the databases that have left the spec. */
  #remover: Raiser | null = null;
  #state = WAITING;
  /** Closed in every database, by a pod that is there for that. */
  readonly #closed = new AbortController();
  readonly #whenStarted = Promise.withResolvers<void>();
  #listening: Promise<void> = Promise.resolve();
  #allListen = false;
  #serving = false;
  /** An earlier life of this sidecar had served it. */
  #servedBefore = false;

  constructor(parts: SidecarParts) {
    this.#parts = parts;
    const { api, clock, random, log, config, pod } = parts;
    assertTiming(config.timing);
    this.#wires = new Wires({
      ...parts,
      permit: this.#permit,
      taken: (database, why) => {
        if (this.#raiser) this.#raiser.failed(database, why);
        else log.warn(why.message, { database: database.name, hint: why.hint });
      },
      joined: () => this.#whenJoined(),
      freed: (database) => this.#raiser?.mended(database),
      lost: (database, why) => this.#lostBy(database, why),
    });
    const report = (): string => this.#report();
    this.#holder = new Holder({
      api,
      clock,
      random,
      log,
      timing: config.timing,
      permit: this.#permit,
      holder: pod.uid,
      report,
    });
  }

  /** Runs until `signal` aborts, which the kubelet does after the application has ended. */
  async run(signal: AbortSignal): Promise<void> {
    const { config, clock, log, startServer } = this.#parts;
    const server = await startServer({
      port: config.httpPort,
      clock,
      state: () => ({
        started: this.#started,
        state: this.#state,
        generation: this.#grant?.generation ?? null,
        rejectedWrites: this.#wires.rejectedWrites(),
        held: this.#wires.held(),
      }),
      whenStarted: this.#whenStarted.promise,
    });
    const life = AbortSignal.any([signal, this.#broken.signal]);
    log.info("candidate", { state: this.#state });
    try {
      await this.#own(life);
    } catch (error) {
      // Whatever was cut short says only that it was.
      this.#broken.signal.throwIfAborted();
      if (!signal.aborted) throw error;
    } finally {
      await this.#end();
      await server.stop();
      log.info("sidecar ends", { state: this.#state, rejectedWrites: this.#wires.rejectedWrites() });
    }
  }

  get closed(): boolean {
    return this.#closed.signal.aborted;
  }

  /** What the startup probe asks. */
  get #started(): boolean {
    return this.#parts.config.application === "Started" ? this.#allListen : this.#serving;
  }

  async #own(life: AbortSignal): Promise<void> {
    const { log, config } = this.#parts;
    const onlyCloses = config.purpose === "close";
    // Before the grant: a takeover does not wait for it, and an application that is started early finds its ports.
    if (!onlyCloses) this.#listening = this.#listenToAll(life);
    // It fails with `life` only, as everything that waits for it does.
    this.#listening.catch(() => {});
    const granted = new AbortController();
    if (!onlyCloses) void this.#rehearse(AbortSignal.any([life, granted.signal]));
    const grant = await this.#holder.waitForGrant(life);
    granted.abort(new Error("it is granted"));
    this.#grant = grant;
    this.#state = `raising the fence to generation ${grant.generation}`;
    log.info("granted", { generation: grant.generation });
    // In front of the first renewal, which carries its report.
    const identity = this.#identity(grant);
    const raiser = this.#raiserOf(identity);
    this.#raiser = raiser;
    const lost = new AbortController();
    const holding = this.#holder.hold(grant, AbortSignal.any([life, this.#closed.signal])).then((why) => {
      if (why === null) return;
      this.#lose(why);
      lost.abort(new Error(why));
    });
    const ours = AbortSignal.any([life, lost.signal]);
    await (onlyCloses ? this.#close(raiser, ours) : this.#open(raiser, ours)).catch((error) => {
      if (!ours.aborted) throw error;
    });
    await holding;
    if (onlyCloses) return;
    // Lost: the proxies go on answering why, until the application has ended.
    await whenAborted(life);
    this.#broken.signal.throwIfAborted();
  }

  async #rehearse(signal: AbortSignal): Promise<void> {
    const tell = (problem: string | null): void => {
      this.#state = problem === null ? WAITING : `${WAITING}; ${problem}`;
    };
    await rehearse({ ...this.#parts, tell }, signal).catch((error) => {
      if (!signal.aborted) this.#parts.log.error("the rehearsal failed", { error });
    });
  }

  #identity({ generation }: Grant): FenceIdentity {
    const { config, pod } = this.#parts;
    return { fenceName: config.fenceName, generation, holder: pod.uid, holderName: pod.name };
  }

  #raiserOf(identity: FenceIdentity, config = this.#parts.config): Raiser {
    const { clock, random, log, databases } = this.#parts;
    const nonce = random.bytes(NONCE_BYTES).toString("hex");
    const changed = (): void => this.#holder.renewSoon();
    const report = parseReport(this.#holder.reportAtGrant);
    const ours = report?.generation === identity.generation ? report : null;
    this.#servedBefore = ours?.served ?? false;
    const told = ours?.fences ?? [];
    const earlier = told.filter((fence) => config.databases.some(({ name }) => name === fence.database));
    return new Raiser({ config, identity, nonce, clock, random, log, changed, databases, earlier });
  }

  async #open(raiser: Raiser, signal: AbortSignal): Promise<void> {
    const raised = await raiser.raiseAll(signal);
    if (!raised) {
      this.#state = REFUSED;
      return this.#refuse(raiser.failures.find(({ final }) => final)?.message ?? REFUSED);
    }
    await Promise.race([this.#listening, whenAborted(signal)]);
    signal.throwIfAborted();
    this.#raised = raised;
    // In this order: whoever is served finds the permit open (INV-4).
    this.#permit.open();
    for (const one of raised) {
      const { jobId, incarnation, witness } = one.raised;
      const wire = this.#wires.of(one.database);
      wire.serve({ address: one.address, jobId, incarnation, witness, identity: raiser.identity });
      void keepBeating(this.#heartbeatOf(one, wire, raiser), signal);
    }
    this.#serving = true;
    this.#whenStarted.resolve();
    this.#state = `owner, generation ${raiser.identity.generation}`;
    const { config } = this.#parts;
    if (!config.closes?.length) return;
    this.#remover = this.#raiserOf(raiser.identity, { ...config, databases: config.closes, purpose: "close" });
    await this.#raiseAndClose(this.#remover, signal);
  }

  /** False if a database refused for good. */
  async #raiseAndClose(raiser: Raiser, signal: AbortSignal): Promise<boolean> {
    if (!(await raiser.raiseAll(signal))) return false;
    while (!(await raiser.closeAll(signal))) await this.#parts.clock.sleep(CLOSE_RETRY_MS, signal);
    return raiser.failures.every(({ final }) => !final);
  }

  async #listenToAll(life: AbortSignal): Promise<void> {
    await this.#wires.listen(life);
    this.#allListen = true;
    if (this.#started) this.#whenStarted.resolve();
  }

  async #close(raiser: Raiser, signal: AbortSignal): Promise<void> {
    if (!(await this.#raiseAndClose(raiser, signal))) {
      this.#state = REFUSED;
      return;
    }
    this.#state = `generation ${this.#grant?.generation} is closed`;
    this.#closed.abort();
  }

  /** The wire of a database has died, or the database says that ownership is over. */
  #lostBy(database: SidecarDatabase, why: string): void {
    const one = this.#raised.find((raised) => raised.database === database);
    // Whoever was held was cut off, and has seen nothing.
    if (!one) return this.#broken.abort(new Error(`database "${database.name}": ${why}`));
    this.#loseTo(one, why);
  }

  #heartbeatOf(one: RaisedDatabase, wire: Wire, raiser: Raiser): HeartbeatParts {
    const { config, clock, random, log, databases } = this.#parts;
    return {
      one,
      reach: (use) => raiser.reach(one, use),
      identity: raiser.identity,
      intervalMs: config.timing.renewIntervalMs,
      clock,
      random,
      log,
      connect: databases.connect,
      confirmed: (witness, address) => wire.confirmed(witness, address),
      lost: (why) => this.#loseTo(one, why),
      failed: (error) => raiser.unreachable(one.database, error),
      mended: () => raiser.mended(one.database),
    };
  }

  /** The Lease may still name this pod: the controller must hear that it cannot own any more. */
  #loseTo(one: RaisedDatabase, why: string): void {
    void this.#raiser?.superseded(one, why);
    this.#lose(why);
  }

  #lose(why: string): void {
    this.#permit.lose();
    this.#state = `generation ${this.#grant?.generation} is over: ${why}`;
    this.#parts.log.warn("ownership is lost", { why });
    this.#refuse(why);
  }

  #refuse(why: string): void {
    this.#wires.refuse(neverServed(this.#parts.config.fenceName, this.#grant?.generation ?? 0, why));
  }

  /** The application has ended: refuse new work, end what is open, close, only then give the Lease back (A05). */
  async #end(): Promise<void> {
    this.#parts.log.info("asked to end", { state: this.#state });
    const held = this.#permit.state(this.#parts.clock.monoMs()) !== "lost";
    // A thread that is just being started would outlive us.
    await this.#listening.catch(() => {});
    await this.#wires.stop();
    if (!this.#grant) {
      // The process that begins anew takes what was granted meanwhile.
      if (!this.#broken.signal.aborted) await this.#holder.releaseUnseen();
      return;
    }
    const rejectedWrites = this.#wires.rejectedWrites();
    const words: LastWords = { generation: this.#grant.generation, rejectedWrites };
    try {
      this.#parts.leaveLastWords(words);
    } catch (error) {
      this.#parts.log.warn("the termination message could not be written; refused writes are not counted", { error });
    }
    if (!held) return;
    await this.#closeInTime();
    await this.#holder.release(this.#grant);
  }

  /** Whoever lost ownership does not come here: his generation is closed by the raise that superseded it. */
  async #closeInTime(): Promise<void> {
    const bound = new AbortController();
    const cancel = this.#parts.clock.after(CLOSE_MS_MAX, () => bound.abort(new Error("the release does not wait")));
    await this.#raiser?.closeAll(bound.signal);
    cancel();
  }

  #report(): string {
    return formatReport({
      generation: this.#grant?.generation ?? 0,
      fences: [...(this.#raiser?.fences ?? []), ...(this.#remover?.fences ?? [])],
      failures: this.#raiser?.failures ?? [],
      unclosed: this.#remover?.failures ?? [],
      served: this.#servedBefore || this.#served(),
    });
  }

  /** From now on its end counts (INV-9), and a change of the spec does not replace it: not only from the next renewal on. */
  #whenJoined(): void {
    if (this.#parts.config.application === "Started") this.#holder.renewSoon();
  }

  /** What the application does is work of this generation. */
  #served(): boolean {
    if (this.#parts.config.application === "NotStarted") return this.#serving;
    return this.#wires.sessions() > 0;
  }
}
