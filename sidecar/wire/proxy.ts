/**
 * The sidecar's PostgreSQL proxy for one database: listens, holds clients until the raise, gives each its own server
 * session.
 *
 * Does NOT pool: a client's settings, locks and cancel keys are those of one server session. Does NOT ask the client
 * who it is: whoever reaches the port is the job's application (the port is on loopback).
 */
import { createServer, type Server, type Socket } from "node:net";
import type { SecureContext } from "node:tls";
import type { DatabaseAddress, FenceIdentity } from "../../fence/database.ts";
import { sessionStartSteps } from "../../fence/enter.ts";
import { KEEPALIVE_MS } from "../../fence/socket.ts";
import type { Witness } from "../../fence/witness.ts";
import type { Permit } from "../../lease/permit.ts";
import type { Clock } from "../../platform/clock.ts";
import type { Logger } from "../../platform/log.ts";
import type { Random } from "../../platform/random.ts";
import { KnownWriters } from "./bare.ts";
import { CancelKeys, type CancelTarget, sendCancel } from "./cancel.ts";
import { Channel } from "./channel.ts";
import { fenceBytes } from "./core.ts";
import { COUNTER, Counters } from "./counters.ts";
import { encodingRefused, errorBytes, lostError, notSupported, type WireError } from "./errors.ts";
import { greeting } from "./greeting.ts";
import { type ListenAddress, listen } from "./listen.ts";
import { type Opening, open, type ServerCertificate, secureContextOf } from "./opening.ts";
import { LAST_MESSAGE_MS_MAX, Relay } from "./relay.ts";
import { isUnreadable, planStartup, type Startup, type StartupPlan } from "./startup.ts";
import { NotAdmitted, openUpstream, type Upstream } from "./upstream.ts";
import { isLoss, type VerdictReader } from "./verdict.ts";

export interface ProxyConfig {
  readonly listen: ListenAddress;
  /** Further places, served alike. */
  readonly alsoListen?: readonly ListenAddress[];
  /** For clients that ask for TLS; without it they are told that there is none. */
  readonly tls?: ServerCertificate;
  readonly address: DatabaseAddress;
  readonly jobId: number;
  /** History in which the generation was raised: no session is opened in another one. */
  readonly incarnation: string;
  readonly identity: FenceIdentity;
  /** Of the last heartbeat that was confirmed. */
  readonly witness?: () => Witness | undefined;
  readonly permit: Permit;
  readonly clock: Clock;
  readonly random: Random;
  readonly log: Logger;
  readonly verdict: VerdictReader;
  readonly counters?: Counters;
  /** How long busy sessions may go on after the permit was lost. */
  readonly drainMs: number;
  /** Bound of a server session's start. */
  readonly connectMs?: number;
  readonly sessionsMax?: number;
}

export interface RunningProxy {
  /** Of the first place. */
  readonly port: number;
  readonly counters: Counters;
  /** Connections that are open now. */
  readonly connections: number;
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
const PERMIT_POLL_MS = 20;
const LOSS_POLL_MS = 100;

export const SHUTTING_DOWN: WireError = {
  severity: "FATAL",
  code: "57P01",
  message: "the FencedJob sidecar is shutting down",
  hint: "An open transaction was rolled back.",
};

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

class Listener implements RunningProxy {
  readonly counters: Counters;
  readonly #config: ProxyConfig;
  readonly #secure: SecureContext | undefined;
  readonly #servers: Server[] = [];
  readonly #openings = new Set<Socket>();
  readonly #clients = new Set<Client>();
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
      else this.#refuse(client, reason);
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
      if (error instanceof NotAdmitted) client.channel.push(error.bytes, 0, error.bytes.length);
      else if (!client.gone.signal.aborted) this.#config.log.error("a connection failed", { error });
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
      client.channel.onBytes = () => {};
      this.#refuse(client, { severity: "FATAL", code: "08P01", message: "too much was sent before the session began" });
      client.gone.abort();
    };
    client.channel.onBytes(client.early, 0, 0);
  }

  async #startSession(client: Client, startup: Startup): Promise<void> {
    const { address, jobId, identity, incarnation, clock, random } = this.#config;
    const plan = planStartup(startup, address.user, address.database);
    const wrong = this.#wrongStartup(plan);
    if (wrong) return this.#refuse(client, wrong);
    if (!(await this.#permitted(client))) return;
    const upstream = await openUpstream({
      address,
      startup: plan.toServer,
      poolerStartup: plan.toPooler,
      steps: sessionStartSteps(jobId, identity, incarnation, this.#config.witness?.()),
      clock,
      random,
      timeoutMs: this.#config.connectMs ?? CONNECT_MS,
      signal: client.gone.signal,
    }).catch(async (error: unknown) => {
      if (!(error instanceof NotAdmitted) || !error.byGate) throw error;
      const verdict = await this.#config.verdict(false);
      if (!isLoss(verdict)) throw error;
      this.counters.add(COUNTER.refusedLost);
      const lost = lostError(identity, verdict, false);
      throw new NotAdmitted(lost.code, lost.message, errorBytes(lost));
    });
    this.#join(client, upstream, plan);
  }

  #wrongStartup(plan: StartupPlan): WireError | undefined {
    const { database } = this.#config.address;
    if (this.#closed) return SHUTTING_DOWN;
    if (this.connections > (this.#config.sessionsMax ?? SESSIONS_MAX)) {
      return { severity: "FATAL", code: "53300", message: "the FencedJob sidecar has no free connection" };
    }
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

  /** Holds the connection until the raise has committed (INV-4). False: it was refused, or has gone. */
  async #permitted(client: Client): Promise<boolean> {
    const { permit, clock, identity, verdict } = this.#config;
    while (permit.state(clock.monoMs()) === "closed") {
      if (client.gone.signal.aborted || this.#closed) return false;
      await clock.sleep(PERMIT_POLL_MS);
    }
    if (permit.state(clock.monoMs()) !== "lost") return true;
    this.counters.add(COUNTER.refusedLost);
    this.#refuse(client, lostError(identity, await verdict(false), false));
    return false;
  }

  #join(client: Client, upstream: Upstream, plan: StartupPlan): void {
    const { address, clock, random } = this.#config;
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
      writers: this.#writers,
      counters: this.counters,
      client: channel,
      server: upstream.channel,
      fence: fenceBytes(this.#config.jobId, this.#config.identity, random.bytes(SUFFIX_BYTES).toString("hex")),
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
    const bytes = greeting(upstream, plan, key);
    channel.push(bytes, 0, bytes.length);
    channel.flush();
    const { behind } = upstream;
    if (behind.length > 0) upstream.channel.onBytes(behind, 0, behind.length);
    if (client.early.length > 0) channel.onBytes(client.early, 0, client.early.length);
    client.early = Buffer.alloc(0);
  }
}
