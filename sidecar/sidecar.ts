/**
 * The sidecar's life: wait for the grant, renew, raise, open the proxies, serve until the pod ends, close, give the Lease back.
 * Or, in a pod that only closes: raise, close, give it back, and end.
 *
 * Invariants: no proxy listens and the startup probe does not pass before the raise has committed in every database
 * (INV-4); a loss is final for this pod (INV-7). The process never exits while it waits or after a loss: the kubelet
 * would start it again, and the application could not read why it is refused.
 */
import type { FenceIdentity } from "../fence/database.ts";
import type { LeaseApi } from "../lease/client.ts";
import { Holder } from "../lease/holder.ts";
import { Permit } from "../lease/permit.ts";
import type { Grant } from "../lease/record.ts";
import { formatReport, type LastWords, parseReport } from "../lease/report.ts";
import type { SidecarConfig } from "../lease/sidecarconfig.ts";
import { assertTiming } from "../lease/timing.ts";
import type { Clock } from "../platform/clock.ts";
import type { Logger } from "../platform/log.ts";
import type { Random } from "../platform/random.ts";
import { type HeartbeatParts, keepBeating } from "./heartbeat.ts";
import type { startSidecarServer } from "./http.ts";
import { type DatabaseAccess, type RaisedDatabase, Raiser } from "./raiser.ts";
import type { startWire, Wire } from "./wire/thread.ts";

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

const NONCE_BYTES = 16;
const LISTEN_RETRY_MS = 2_000;
/** Of the close at the end: the next raise does the same, so that the release need not be held up for longer. */
const CLOSE_MS_MAX = 4_000;
const CLOSE_RETRY_MS = 1_000;
const REFUSED = "a database refused this generation for good; the pod is replaced";
/** The containers of a pod may run as any user; nobody outside of the pod has the volume. */
const SHARED_SOCKET_MODE = 0o777;

export class Sidecar {
  readonly #parts: SidecarParts;
  readonly #permit = new Permit();
  readonly #wires: Wire[] = [];
  readonly #holder: Holder;
  #grant: Grant | null = null;
  #raiser: Raiser | null = null;
  /** Of the databases that have left the spec. */
  #remover: Raiser | null = null;
  #state = "waiting for ownership";
  #started = false;
  /** Closed in every database, by a pod that is there for that. */
  readonly #closed = new AbortController();
  readonly #whenStarted = Promise.withResolvers<void>();

  constructor(parts: SidecarParts) {
    this.#parts = parts;
    const { api, clock, random, log, config, pod } = parts;
    assertTiming(config.timing);
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
        rejectedWrites: this.#rejectedWrites(),
      }),
      whenStarted: this.#whenStarted.promise,
    });
    try {
      await this.#own(signal);
    } catch (error) {
      if (!signal.aborted) throw error;
    } finally {
      await this.#end();
      await server.stop();
      log.info("sidecar ends", { state: this.#state, rejectedWrites: this.#rejectedWrites() });
    }
  }

  get closed(): boolean {
    return this.#closed.signal.aborted;
  }

  async #own(signal: AbortSignal): Promise<void> {
    const { log, config } = this.#parts;
    const grant = await this.#holder.waitForGrant(signal);
    this.#grant = grant;
    this.#state = `raising the fence to generation ${grant.generation}`;
    log.info("granted", { generation: grant.generation });
    // In front of the first renewal, which carries its report.
    const identity = this.#identity(grant);
    const raiser = this.#raiserOf(identity);
    this.#raiser = raiser;
    const lost = new AbortController();
    const holding = this.#holder.hold(grant, AbortSignal.any([signal, this.#closed.signal])).then((why) => {
      if (why === null) return;
      this.#lose(why);
      lost.abort(new Error(why));
    });
    const onlyCloses = config.purpose === "close";
    const ours = AbortSignal.any([signal, lost.signal]);
    await (onlyCloses ? this.#close(raiser, ours) : this.#open(identity, raiser, ours)).catch((error) => {
      if (!ours.aborted) throw error;
    });
    await holding;
    if (onlyCloses) return;
    // Lost: the proxies go on answering why, until the application has ended.
    if (!signal.aborted)
      await new Promise<void>((resolve) => signal.addEventListener("abort", () => resolve(), { once: true }));
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
    const told = report?.generation === identity.generation ? report.fences : [];
    const earlier = told.filter((fence) => config.databases.some(({ name }) => name === fence.database));
    return new Raiser({ config, identity, nonce, clock, random, log, changed, databases, earlier });
  }

  async #open(identity: FenceIdentity, raiser: Raiser, signal: AbortSignal): Promise<void> {
    const raised = await raiser.raiseAll(signal);
    if (!raised) {
      this.#state = REFUSED;
      return;
    }
    for (const one of raised) {
      const wire = await this.#listen(one, identity, raiser, signal);
      this.#wires.push(wire);
      void keepBeating(this.#heartbeatOf(one, wire, identity, raiser), signal);
    }
    signal.throwIfAborted();
    this.#permit.open();
    this.#state = `owner, generation ${identity.generation}`;
    this.#started = true;
    this.#whenStarted.resolve();
    const { config } = this.#parts;
    if (!config.closes?.length) return;
    this.#remover = this.#raiserOf(identity, { ...config, databases: config.closes, purpose: "close" });
    await this.#raiseAndClose(this.#remover, signal);
  }

  /** False if a database refused for good. */
  async #raiseAndClose(raiser: Raiser, signal: AbortSignal): Promise<boolean> {
    if (!(await raiser.raiseAll(signal))) return false;
    while (!(await raiser.closeAll(signal))) await this.#parts.clock.sleep(CLOSE_RETRY_MS, signal);
    return true;
  }

  async #close(raiser: Raiser, signal: AbortSignal): Promise<void> {
    if (!(await this.#raiseAndClose(raiser, signal))) {
      this.#state = REFUSED;
      return;
    }
    this.#state = `generation ${this.#grant?.generation} is closed`;
    this.#closed.abort();
  }

  /** Opens the database's port; while another process of the pod has it, says so and tries again. */
  async #listen(one: RaisedDatabase, identity: FenceIdentity, raiser: Raiser, signal: AbortSignal): Promise<Wire> {
    const { config, clock, log } = this.#parts;
    const { database, address, raised } = one;
    for (;;) {
      signal.throwIfAborted();
      try {
        const wire = await this.#parts.startWire({
          listen: { host: "127.0.0.1", port: database.port },
          ...(database.socketDir && {
            alsoListen: [{ host: database.socketDir, port: database.port, socketMode: SHARED_SOCKET_MODE }],
          }),
          address,
          jobId: raised.jobId,
          incarnation: raised.incarnation,
          identity,
          witness: raised.witness,
          permit: this.#permit,
          drainMs: config.drainMs,
          log,
          lost: (why) => this.#loseTo(one, raiser, why),
        });
        raiser.mended(database);
        return wire;
      } catch (error) {
        raiser.failed(database, {
          code: "LF018",
          message: `the proxy cannot listen on 127.0.0.1:${database.port}: ${error instanceof Error ? error.message : error}.`,
          hint: `Another container of the pod has the port: choose another spec.databases[].port for "${database.name}".`,
        });
        await clock.sleep(LISTEN_RETRY_MS, signal);
      }
    }
  }

  #heartbeatOf(one: RaisedDatabase, wire: Wire, identity: FenceIdentity, raiser: Raiser): HeartbeatParts {
    const { config, clock, random, log, databases } = this.#parts;
    return {
      one,
      identity,
      intervalMs: config.timing.renewIntervalMs,
      clock,
      random,
      log,
      connect: databases.connect,
      confirmed: (witness) => wire.confirmed(witness),
      lost: (why) => this.#loseTo(one, raiser, why),
      failed: (error) => raiser.unreachable(one.database, error),
      mended: () => raiser.mended(one.database),
    };
  }

  /** The Lease may still name this pod: the controller must hear that it cannot own any more. */
  #loseTo(one: RaisedDatabase, raiser: Raiser, why: string): void {
    void raiser.superseded(one, why);
    this.#lose(why);
  }

  #lose(why: string): void {
    this.#permit.lose();
    this.#state = `generation ${this.#grant?.generation} is over: ${why}`;
    this.#parts.log.warn("ownership is lost", { why });
  }

  /** The application has ended: refuse new work, end what is open, close, only then give the Lease back (A05). */
  async #end(): Promise<void> {
    this.#parts.log.info("asked to end", { state: this.#state });
    const held = this.#permit.state(this.#parts.clock.monoMs()) !== "lost";
    for (const wire of this.#wires) await wire.stop();
    if (!this.#grant) return;
    const words: LastWords = { generation: this.#grant.generation, rejectedWrites: this.#rejectedWrites() };
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

  #rejectedWrites(): number {
    return this.#wires.reduce((sum, wire) => sum + wire.rejectedWrites(), 0);
  }

  #report(): string {
    return formatReport({
      generation: this.#grant?.generation ?? 0,
      fences: [...(this.#raiser?.fences ?? []), ...(this.#remover?.fences ?? [])],
      failures: this.#raiser?.failures ?? [],
      unclosed: this.#remover?.failures ?? [],
    });
  }
}
