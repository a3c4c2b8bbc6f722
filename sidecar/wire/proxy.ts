/**
 * The sidecar's PostgreSQL proxy for one database: listens, holds clients until the raise, gives each its own server
 * session.
 *
 * Does NOT pool: a client's settings, locks and cancel keys are those of one server session. Does NOT ask the client
 * who it is: whoever reaches the port is the job's application (the port is on loopback).
 *
 * INV-4: before `serve`, which comes after the raise, it knows no database: a held client has had at most the answer to its
 * request for encryption.
 */
import { createServer, type Server, type Socket } from "node:net";
import type { SecureContext } from "node:tls";
import { KEEPALIVE_MS } from "../../fence/socket.ts";
import type { Permit } from "../../lease/permit.ts";
import type { Clock } from "../../platform/clock.ts";
import type { Logger } from "../../platform/log.ts";
import type { Random } from "../../platform/random.ts";
import { openAdmitted, type Served, wrongStartup } from "./admission.ts";
import { KnownWriters } from "./bare.ts";
import { CancelKeys, type CancelTarget, sendCancel } from "./cancel.ts";
import { Channel } from "./channel.ts";
import { fenceBytes } from "./core.ts";
import { COUNTER, Counters } from "./counters.ts";
import { encodingRefused, errorBytes, FULL, lostError, SHUTTING_DOWN, type WireError } from "./errors.ts";
import { greeting } from "./greeting.ts";
import { Hold } from "./hold.ts";
import { type ListenAddress, listen } from "./listen.ts";
import { type Opening, open, type ServerCertificate, secureContextOf } from "./opening.ts";
import { LAST_MESSAGE_MS_MAX, Relay } from "./relay.ts";
import { isUnreadable, planStartup, type Startup, type StartupPlan } from "./startup.ts";
import { NotAdmitted, type Upstream } from "./upstream.ts";

export interface ProxyConfig {
  readonly listen: ListenAddress;
  /** Further places, served alike. */
  readonly alsoListen?: readonly ListenAddress[];
  /** For clients that ask for TLS; without it they are told that there is none. */
  readonly tls?: ServerCertificate;
  readonly permit: Permit;
  readonly clock: Clock;
  readonly random: Random;
  readonly log: Logger;
  readonly counters?: Counters;
  /** A client is given its session. */
  readonly joined?: () => void;
  /** How long busy sessions may go on after the permit was lost. */
  readonly drainMs: number;
  /** Bound of a server session's start. */
  readonly connectMs?: number;
  /** Connections at once, held ones included. */
  readonly sessionsMax?: number;
}

export interface RunningProxy {
  /** Of the first place. */
  readonly port: number;
  readonly counters: Counters;
  /** Connections that are open now. */
  readonly connections: number;
  /** The generation is raised, the permit open: who was held and who comes gets a session. */
  serve(served: Served): void;
  /** It will never be served: who was held and who comes is told why. Nothing once it is served. */
  refuse(why: WireError): void;
  /** Ends the listening, and every session with `reason`. */
  close(reason?: WireError): Promise<void>;
}

const CLIENT_SOCKETS = { allowHalfOpen: true, noDelay: true, keepAlive: true, keepAliveInitialDelay: KEEPALIVE_MS };
const CONNECT_MS = 15_000;
const SESSIONS_MAX = 1_000;
/** From a connection's first byte to the end of its startup message. As PostgreSQL's authentication_timeout, but shorter. */
const OPENING_MS_MAX = 20_000;
const EARLY_BYTES_MAX = 64 * 1024;
/** Of the names of a session's own prepared statements. */
const SUFFIX_BYTES = 8;
const LOSS_POLL_MS = 100;

/** Listens, and holds every client. */
export async function startProxy(config: ProxyConfig): Promise<RunningProxy> {
  const listener = new Listener(config);
  await listener.listen();
  return listener;
}

/** A connection from its startup message to its end. */
interface Client {
  readonly channel: Channel;
  readonly gone: AbortController;
  relay: Relay | undefined;
  /** What it sent behind its startup message, before there was a session to take it. */
  early: Buffer;
}

/** What the clients that are held wait for. */
type Outcome = Served | { readonly refused: WireError };

class Listener implements RunningProxy {
  readonly counters: Counters;
  readonly #config: ProxyConfig;
  readonly #secure: SecureContext | undefined;
  readonly #servers: Server[] = [];
  readonly #openings = new Set<Socket>();
  readonly #clients = new Set<Client>();
  readonly #hold = new Hold<Outcome>();
  readonly #keys = new CancelKeys();
  readonly #writers = new KnownWriters();
  #closed = false;
  #lostAtMs: number | undefined;

  constructor(config: ProxyConfig) {
    this.#config = config;
    this.counters = config.counters ?? new Counters();
    this.#secure = config.tls && secureContextOf(config.tls);
  }

  get port(): number {
    const bound = this.#servers[0]?.address();
    return typeof bound === "object" && bound ? bound.port : this.#config.listen.port;
  }

  get connections(): number {
    return this.#openings.size + this.#clients.size;
  }

  serve(served: Served): void {
    this.#hold.decide(served);
  }

  refuse(why: WireError): void {
    this.#hold.decide({ refused: why });
  }

  async listen(): Promise<void> {
    const { listen: first, alsoListen = [] } = this.#config;
    try {
      for (const address of [first, ...alsoListen]) {
        const server = createServer(CLIENT_SOCKETS, (socket) => void this.#serve(socket));
        this.#servers.push(server);
        await listen(server, address);
      }
    } catch (error) {
      await this.close();
      throw error;
    }
    this.#watchPermit();
  }

  async close(reason: WireError = SHUTTING_DOWN): Promise<void> {
    this.#closed = true;
    const closed = this.#servers.map((server) => new Promise<void>((resolve) => server.close(() => resolve())));
    for (const raw of this.#openings) raw.destroy();
    for (const client of this.#clients) {
      if (client.relay) client.relay.end(reason);
      else this.#give(client, reason);
    }
    await Promise.all(closed);
  }

  /** A lost permit ends idle sessions at once and busy ones after the drain time, also when no client says anything. */
  #watchPermit(): void {
    if (this.#closed) return;
    const { clock, permit, drainMs } = this.#config;
    const nowMs = clock.monoMs();
    if (permit.state(nowMs) === "lost") {
      this.#lostAtMs ??= nowMs;
      const late = nowMs - this.#lostAtMs >= drainMs;
      for (const { relay } of this.#clients) if (relay && (late || !relay.busy)) relay.lose();
    }
    clock.after(LOSS_POLL_MS, () => this.#watchPermit());
  }

  async #serve(raw: Socket): Promise<void> {
    const opened = await this.#open(raw);
    if (!opened) return;
    const client: Client = {
      channel: new Channel(opened.socket),
      gone: new AbortController(),
      relay: undefined,
      early: Buffer.alloc(0),
    };
    this.#clients.add(client);
    client.channel.onEnd = () => {
      client.gone.abort();
      this.#clients.delete(client);
    };
    if (opened.kind === "refused") {
      return this.#refuse(client, { severity: "FATAL", code: "08P01", message: opened.error.message });
    }
    if (opened.kind === "cancel") {
      this.#keys.request(opened.pid, opened.key);
      return this.#dismiss(client);
    }
    this.#keepEarly(client, opened.behind);
    try {
      await this.#startSession(client, opened.startup);
    } catch (error) {
      if (error instanceof NotAdmitted) {
        if (error.byLoss) this.counters.add(COUNTER.refusedLost);
        client.channel.push(error.bytes, 0, error.bytes.length);
      } else if (!client.gone.signal.aborted) this.#config.log.error("a connection failed", { error });
      this.#dismiss(client);
    }
  }

  /** Up to the startup message, within a bound; undefined: there is nobody to answer. */
  async #open(raw: Socket): Promise<Opening | undefined> {
    this.#openings.add(raw);
    const cancelTimer = this.#config.clock.after(OPENING_MS_MAX, () => raw.destroy());
    try {
      return await open(raw, this.#secure);
    } catch {
      raw.destroy();
      return undefined;
    } finally {
      cancelTimer();
      this.#openings.delete(raw);
    }
  }

  #refuse(client: Client, error: WireError): void {
    const bytes = errorBytes({ ...error, severity: "FATAL" });
    client.channel.push(bytes, 0, bytes.length);
    this.#dismiss(client);
  }

  /** Its last message, whatever it waits for. */
  #give(client: Client, reason: WireError): void {
    this.#refuse(client, reason);
    client.gone.abort(new Error(reason.message));
  }

  /** What the client still sends is thrown away; one that stays is cut off. */
  #dismiss({ channel }: Client): void {
    channel.onBytes = () => {};
    channel.end();
    this.#config.clock.after(LAST_MESSAGE_MS_MAX, () => channel.destroy());
  }

  /** The session is not there yet; what the client already sends is kept for it, within a bound. */
  #keepEarly(client: Client, received: Buffer): void {
    client.early = received;
    client.channel.onBytes = (bytes, start, end) => {
      client.early = Buffer.concat([client.early, bytes.subarray(start, end)]);
      if (client.early.length <= EARLY_BYTES_MAX) return;
      client.early = Buffer.alloc(0);
      this.#give(client, { severity: "FATAL", code: "08P01", message: "too much was sent before the session began" });
    };
    client.channel.onBytes(client.early, 0, 0);
  }

  async #startSession(client: Client, startup: Startup): Promise<void> {
    const { clock, random, connectMs = CONNECT_MS, sessionsMax = SESSIONS_MAX } = this.#config;
    if (this.#closed) return this.#refuse(client, SHUTTING_DOWN);
    if (this.connections > sessionsMax) return this.#refuse(client, FULL);
    const served = await this.#held(client);
    if ("refused" in served) return this.#refuse(client, served.refused);
    const plan = planStartup(startup, served.address.user, served.address.database);
    const wrong = wrongStartup(plan, served.address);
    if (wrong) return this.#refuse(client, wrong);
    if (!(await this.#permitted(client, served))) return;
    const upstream = await openAdmitted(served, plan, {
      clock,
      random,
      timeoutMs: connectMs,
      signal: client.gone.signal,
    });
    this.#join(client, upstream, plan, served);
  }

  async #held(client: Client): Promise<Outcome> {
    this.counters.add(COUNTER.held);
    try {
      return await this.#hold.outcome(client.gone.signal);
    } finally {
      this.counters.add(COUNTER.held, -1);
    }
  }

  /** False: it was refused. */
  async #permitted(client: Client, { identity, verdict }: Served): Promise<boolean> {
    const { permit, clock } = this.#config;
    const state = permit.state(clock.monoMs());
    if (state === "closed") throw new Error("INV-4: a client was to be served before the permit was opened");
    if (state !== "lost") return true;
    this.counters.add(COUNTER.refusedLost);
    this.#refuse(client, lostError(identity, await verdict(false), false));
    return false;
  }

  #join(client: Client, upstream: Upstream, plan: StartupPlan, served: Served): void {
    const { clock, random } = this.#config;
    const { address, jobId, identity } = served;
    const { channel } = client;
    if (client.gone.signal.aborted || upstream.channel.ended) {
      upstream.channel.destroy();
      channel.destroy();
      return;
    }
    const encoding = upstream.parameters.get("client_encoding") ?? "";
    if (isUnreadable(encoding)) {
      upstream.channel.destroy();
      return this.#refuse(client, encodingRefused(encoding));
    }
    const key = random.bytes(plan.keyBytes);
    const relay = new Relay({
      ...this.#config,
      ...served,
      writers: this.#writers,
      counters: this.counters,
      client: channel,
      server: upstream.channel,
      fence: fenceBytes(jobId, identity, random.bytes(SUFFIX_BYTES).toString("hex")),
      readOnlyDefault: plan.readOnlyDefault,
      standardStrings: upstream.parameters.get("standard_conforming_strings") !== "off",
      onClosed: () => {
        this.#clients.delete(client);
        this.#keys.remove(upstream.pid, target);
        this.counters.add(COUNTER.sessionsOpen, -1);
      },
    });
    const target: CancelTarget = {
      key,
      busy: () => relay.cancellable,
      cancel: () => {
        relay.setCancelling(true);
        void sendCancel(address, upstream, clock).finally(() => relay.setCancelling(false));
      },
    };
    if (upstream.key.length > 0) this.#keys.add(upstream.pid, target);
    client.relay = relay;
    this.counters.add(COUNTER.sessionsOpen);
    this.counters.add(COUNTER.sessionsTotal);
    this.#config.joined?.();
    const bytes = greeting(upstream, plan, key);
    channel.push(bytes, 0, bytes.length);
    channel.flush();
    const { behind } = upstream;
    if (behind.length > 0) upstream.channel.onBytes(behind, 0, behind.length);
    if (client.early.length > 0) channel.onBytes(client.early, 0, client.early.length);
    client.early = Buffer.alloc(0);
  }
}
