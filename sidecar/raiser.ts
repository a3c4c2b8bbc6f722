/**
 * Raises the fence in every database of the job, keeps trying while that can succeed, and closes what it has raised. What went wrong is in the
 * report that travels with the next renewal, so that `kubectl describe` shows it.
 *
 * INV-4: nothing of a database reaches the application before this has succeeded in all of them.
 */

import { isDeepStrictEqual } from "node:util";
import { type FenceRow, type Raised, raise, readFence } from "../fence/client.ts";
import { closeFence } from "../fence/close.ts";
import type { Connect } from "../fence/connection.ts";
import { type DatabaseAddress, type FenceIdentity, isSamePlace } from "../fence/database.ts";
import { FenceError, toFenceError } from "../fence/errors.ts";
import type { RaisedFence, RaiseFailure } from "../lease/report.ts";
import type { SidecarConfig, SidecarDatabase } from "../lease/sidecarconfig.ts";
import type { Clock } from "../platform/clock.ts";
import type { Logger } from "../platform/log.ts";
import { jitter, type Random } from "../platform/random.ts";
import { shellWord } from "../platform/shell.ts";
import type { readCredentials } from "./credentials.ts";
import type { probeSession } from "./wire/probe.ts";

/** What a raise needs of the outside. */
export interface DatabaseAccess {
  readonly credentials: typeof readCredentials;
  readonly connect: Connect;
  readonly probe: typeof probeSession;
}

export interface RaiserParts {
  readonly config: SidecarConfig;
  readonly identity: FenceIdentity;
  /** Of this process: a restarted sidecar has another one, and its raise is refused (INV-7). */
  readonly nonce: string;
  readonly clock: Clock;
  readonly random: Random;
  readonly log: Logger;
  /** The report has changed. */
  readonly changed: () => void;
  readonly databases: DatabaseAccess;
  /** What an earlier life of this sidecar has raised under the same grant. */
  readonly earlier: readonly RaisedFence[];
}

export interface RaisedDatabase {
  readonly database: SidecarDatabase;
  /** As it was raised at. */
  readonly address: DatabaseAddress;
  readonly raised: Raised;
}

/** Of whoever is not let in, and so has done nothing there. */
const NOT_LET_IN = new Set(["LF012", "LF015", "LF016"]);

const RETRY_MS_BASE = 500;
const RETRY_MS_MAX = 10_000;

export class Raiser {
  readonly #parts: RaiserParts;
  readonly #fences = new Map<string, RaisedFence>();
  readonly #failures = new Map<string, RaiseFailure>();
  /** By this life. */
  readonly #raised: RaisedDatabase[] = [];
  /** By database: what was let in last, since the raise. */
  readonly #letIn = new Map<string, DatabaseAddress>();

  constructor(parts: RaiserParts) {
    this.#parts = parts;
    // Told on, so that a further life hears of it, too.
    for (const fence of parts.earlier) this.#fences.set(fence.database, fence);
  }

  get identity(): FenceIdentity {
    return this.#parts.identity;
  }

  get fences(): RaisedFence[] {
    return [...this.#fences.values()];
  }

  get failures(): RaiseFailure[] {
    return [...this.#failures.values()];
  }

  /** All databases; null when one of them refused this pod for good. */
  async raiseAll(signal: AbortSignal): Promise<RaisedDatabase[] | null> {
    if (this.#fences.size > 0) return this.#raisedBefore();
    const all = await Promise.all(this.#parts.config.databases.map((database) => this.#raise(database, signal)));
    return all.every((raised) => raised !== null) ? all : null;
  }

  /**
   * INV-7: the database refuses a second raise by itself, but not one that was restored to a time before the first: and
   * the application of this pod may remember what is gone there.
   */
  #raisedBefore(): null {
    for (const { database, generation } of this.#fences.values()) {
      const message = `this pod's sidecar was restarted after it had raised generation ${generation} in "${database}".`;
      this.#tell({ database, code: "LF001", message, hint: "", final: true, floor: generation });
    }
    return null;
  }

  /**
   * Closes what this life has raised and nobody has closed yet: one attempt in each database, side by side. True when
   * nothing is left that another attempt could close. Does not reject: whoever is about to give the Lease back must not be
   * kept from it.
   */
  async closeAll(signal: AbortSignal): Promise<boolean> {
    const closed = await Promise.all(this.#raised.map((one) => this.#close(one, signal)));
    return closed.every(Boolean);
  }

  /**
   * By the address as the Secret says it now: a password may change under an owner. Not at another place, where nothing is raised.
   * By the one before where that is not let in: a Secret may be changed in front of its database.
   */
  async reach<T>(one: RaisedDatabase, use: (address: DatabaseAddress) => Promise<T>): Promise<T> {
    const { name, dir } = one.database;
    const before = this.#addressOf(one);
    const secret = this.#parts.databases.credentials(dir);
    const present = secret.ok && isSamePlace(secret.address, one.address) ? secret.address : before;
    try {
      const done = await use(present);
      this.#letIn.set(name, present);
      return done;
    } catch (error) {
      if (!isNotLetIn(error) || isDeepStrictEqual(present, before)) throw error;
      return await use(before).catch((again) => {
        throw isNotLetIn(again) ? error : again;
      });
    }
  }

  #addressOf({ database, address }: RaisedDatabase): DatabaseAddress {
    return this.#letIn.get(database.name) ?? address;
  }

  async #close(one: RaisedDatabase, signal: AbortSignal): Promise<boolean> {
    const { config, identity, clock, log, databases } = this.#parts;
    const { database } = one;
    let { address } = one;
    const fence = this.#fences.get(database.name);
    if (!fence || fence.closed || this.#failures.get(database.name)?.final) return true;
    try {
      const { connect } = databases;
      const closed = await this.reach(one, (to) => {
        address = to;
        return closeFence(to, identity, { drainMs: config.drainMs, clock, signal, connect });
      });
      log.info("fence closed", { database: database.name, ...closed });
      this.#fences.set(database.name, { ...fence, closed: true });
      this.mended(database);
      this.#parts.changed();
      return true;
    } catch (error) {
      const failure = toFenceError(error, address, "closing the fence");
      const { code, detail, hint } = failure;
      log.warn("the fence was not closed", { database: database.name, code, message: failure.message, detail });
      const message = [failure.message, detail].filter(Boolean).join(" ");
      // Who is there to close is replaced when he never can. Whoever gives the Lease back is followed by a raise anyway, and his
      // end counts all the same.
      const final = config.purpose === "close" && failure.final;
      const floor = final && code === "LF001" ? ((await this.#row(address))?.generation ?? null) : null;
      const told = this.#failures.get(database.name)?.message;
      this.#failures.set(database.name, { database: database.name, code, message, hint, final, floor });
      if (told !== message) this.#parts.changed();
      return final;
    }
  }

  /** Something else keeps the database from the application; told once until it changes. */
  failed(database: SidecarDatabase, { code, message, hint }: Pick<RaiseFailure, "code" | "message" | "hint">): void {
    this.#tell({ database: database.name, code, message, hint, final: false, floor: null });
  }

  /** No heartbeat reaches it; the application goes on as far as it can. */
  unreachable({ name: database }: SidecarDatabase, { code, message, detail, hint }: FenceError): void {
    const text = ["the owner does not reach its database:", message, detail].filter(Boolean).join(" ");
    this.#tell({ database, code, message: text, hint, final: false, floor: null });
  }

  /** The database, or the thread that serves it, is lost to this pod for good: it must be replaced (INV-7). */
  async superseded(one: RaisedDatabase, why: string): Promise<void> {
    const { database } = one;
    const floor = (await this.#row(this.#addressOf(one)))?.generation ?? null;
    const { generation } = this.#parts.identity;
    const message = `generation ${generation} cannot go on in "${database.name}": ${why}.`;
    this.#tell({ database: database.name, code: "LF001", message, hint: "", final: true, floor });
  }

  mended({ name }: SidecarDatabase): void {
    if (this.#failures.get(name)?.final) return;
    if (this.#failures.delete(name)) this.#parts.changed();
  }

  #tell(failure: RaiseFailure): void {
    const before = this.#failures.get(failure.database);
    // What is final stands: a controller that was away when it was told would take this pod for an owner.
    if (before?.final && !failure.final) return;
    this.#failures.set(failure.database, failure);
    this.#parts.log.warn("the application cannot have its database", { ...failure });
    if (before?.message !== failure.message || failure.final) this.#parts.changed();
  }

  async #raise(database: SidecarDatabase, signal: AbortSignal): Promise<RaisedDatabase | null> {
    const { clock, random, log } = this.#parts;
    for (let attempt = 0; ; attempt++) {
      signal.throwIfAborted();
      const result = await this.#attempt(database, signal);
      if ("raised" in result) {
        this.#failures.delete(database.name);
        this.#fences.set(database.name, reportOf(database, result.raised));
        this.#raised.push(result);
        log.info("fence raised", { database: database.name, ...result.raised });
        this.#parts.changed();
        return result;
      }
      this.#tell(result);
      if (result.final) return null;
      await clock.sleep(jitter(random, Math.min(RETRY_MS_MAX, RETRY_MS_BASE * 2 ** attempt)), signal);
    }
  }

  async #attempt(database: SidecarDatabase, signal: AbortSignal): Promise<RaisedDatabase | RaiseFailure> {
    const { config, identity, nonce, clock, random, databases } = this.#parts;
    const credentials = databases.credentials(database.dir);
    if (!credentials.ok) {
      const message = `Secret "${database.secretName}" in namespace "${config.namespace}" gives no address: ${credentials.problem}.`;
      // Also where there is one: nothing here can tell.
      const hint = `Give it one: kubectl create secret generic -n ${config.namespace} ${database.secretName} --from-literal=uri='postgres://…' --dry-run=client -o yaml | kubectl apply -f - ; it is read again by itself.`;
      return { database: database.name, code: "LF017", message, hint, final: false, floor: null };
    }
    const { address } = credentials;
    try {
      const raised = await raise(address, identity, {
        drainMs: config.drainMs,
        nonce,
        issuer: config.issuer,
        takeOver: config.takeOver,
        clock,
        signal,
        connect: databases.connect,
      });
      // Who only closes serves no session.
      const refused =
        config.purpose === "close" ? null : await databases.probe(address, raised, identity, { clock, random, signal });
      if (refused) return { database: database.name, ...refused, final: false, floor: null };
      return { database, address, raised };
    } catch (error) {
      signal.throwIfAborted();
      return await this.#failureOf(toFenceError(error, address, "raising the fence"), database, address);
    }
  }

  async #failureOf(
    error: FenceError,
    { name: database }: SidecarDatabase,
    address: DatabaseAddress,
  ): Promise<RaiseFailure> {
    const { code, hint, final } = error;
    const message = [error.message, error.detail].filter(Boolean).join(" ");
    if (code !== "LF001" && code !== "LF005") return { database, code, message, hint, final, floor: null };
    const row = await this.#row(address);
    const told = { database, code, message, hint, final, floor: row?.generation ?? null };
    if (code === "LF001" || !row?.issuer) return told;
    return { ...told, hint: takeOverHint(this.#parts.config, row), issuer: row.issuer };
  }

  /** Its generation is what the database has accepted already: the next one must be above it (INV-8). */
  async #row(address: DatabaseAddress): Promise<FenceRow | null> {
    const { identity, clock, log, databases } = this.#parts;
    try {
      return await readFence(address, identity.fenceName, { clock, connect: databases.connect });
    } catch (error) {
      log.warn("the fence row could not be read", { error: error instanceof FenceError ? error.message : error });
      return null;
    }
  }
}

const isNotLetIn = (error: unknown): boolean => error instanceof FenceError && NOT_LET_IN.has(error.code);

/** The exact command, because two control planes that write into one database are nobody's everyday. */
function takeOverHint({ namespace, job }: SidecarConfig, { issuer, generation }: FenceRow): string {
  const patch = JSON.stringify({ spec: { takeOver: { issuer, generation } } });
  return `If that cluster's work has moved here for good: kubectl patch fencedjob ${job} -n ${namespace} --type merge -p ${shellWord(patch)} ; else give one of the two another spec.fenceName.`;
}

function reportOf(database: SidecarDatabase, raised: Raised): RaisedFence {
  const { generation, previousGeneration, incarnation, tookMs, sessionsEnded } = raised;
  const closed = false;
  return { database: database.name, generation, previousGeneration, incarnation, tookMs, sessionsEnded, closed };
}
