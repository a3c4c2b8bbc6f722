/** The wires of a pod's databases: they listen before the grant and hold who connects, and are served, refused and stopped together. */
import type { Permit } from "../lease/permit.ts";
import type { RaiseFailure } from "../lease/report.ts";
import type { SidecarConfig, SidecarDatabase } from "../lease/sidecarconfig.ts";
import type { Clock } from "../platform/clock.ts";
import type { Logger } from "../platform/log.ts";
import type { WireError } from "./wire/errors.ts";
import type { startWire, Wire } from "./wire/thread.ts";

export interface WiresParts {
  readonly config: SidecarConfig;
  readonly permit: Permit;
  readonly clock: Clock;
  readonly log: Logger;
  readonly startWire: typeof startWire;
  /** Another process of the pod has the database's port: it is tried again. */
  readonly taken: (database: SidecarDatabase, why: Pick<RaiseFailure, "code" | "message" | "hint">) => void;
  readonly freed: (database: SidecarDatabase) => void;
  /** The application is given its first session. */
  readonly joined: () => void;
  /** The wire has died, or its database says that ownership is over. */
  readonly lost: (database: SidecarDatabase, why: string) => void;
}

const RETRY_MS = 2_000;
/** The containers of a pod may run as any user; nobody outside of the pod has the volume. */
const SHARED_SOCKET_MODE = 0o777;

export class Wires {
  readonly #parts: WiresParts;
  /** By the name of the database. */
  readonly #wires = new Map<string, Wire>();
  #joined = false;
  /** Why nobody will be served. */
  #refusal: WireError | undefined;

  constructor(parts: WiresParts) {
    this.#parts = parts;
  }

  /** Resolves when each port is open; goes on until then, or until `life` aborts. */
  async listen(life: AbortSignal): Promise<void> {
    await Promise.all(this.#parts.config.databases.map((database) => this.#listen(database, life)));
  }

  async #listen(database: SidecarDatabase, life: AbortSignal): Promise<void> {
    const { clock, taken, freed } = this.#parts;
    for (let failed = false; ; failed = true) {
      life.throwIfAborted();
      try {
        const wire = await this.#start(database, life);
        this.#wires.set(database.name, wire);
        if (this.#refusal) wire.refuse(this.#refusal);
        if (failed) freed(database);
        return;
      } catch (error) {
        life.throwIfAborted();
        const message = `the proxy cannot listen on 127.0.0.1:${database.port}: ${error instanceof Error ? error.message : error}.`;
        const hint = `Another container of the pod has the port: choose another spec.databases[].port for "${database.name}".`;
        taken(database, { code: "LF018", message, hint });
        await clock.sleep(RETRY_MS, life);
      }
    }
  }

  #start(database: SidecarDatabase, signal: AbortSignal): Promise<Wire> {
    const { config, permit, log, joined, lost } = this.#parts;
    const { port, socketDir } = database;
    return this.#parts.startWire({
      listen: { host: "127.0.0.1", port },
      ...(socketDir && { alsoListen: [{ host: socketDir, port, socketMode: SHARED_SOCKET_MODE }] }),
      permit,
      drainMs: config.drainMs,
      log,
      joined: () => {
        if (!this.#joined) joined();
        this.#joined = true;
      },
      lost: (why) => lost(database, why),
      signal,
    });
  }

  of({ name }: SidecarDatabase): Wire {
    const wire = this.#wires.get(name);
    if (!wire) throw new Error(`database "${name}" has no wire`);
    return wire;
  }

  /** Whoever is held hears why; nothing once they are served, then each session hears it in its own way. */
  refuse(why: WireError): void {
    this.#refusal = why;
    for (const wire of this.#wires.values()) wire.refuse(why);
  }

  async stop(): Promise<void> {
    await Promise.all([...this.#wires.values()].map((wire) => wire.stop()));
  }

  rejectedWrites(): number {
    return this.#sum((wire) => wire.rejectedWrites());
  }

  /** Connections that wait for the raise. */
  held(): number {
    return this.#sum((wire) => wire.counts().held);
  }

  /** Since the beginning. */
  sessions(): number {
    return this.#sum((wire) => wire.counts().sessionsTotal);
  }

  #sum(count: (wire: Wire) => number): number {
    return [...this.#wires.values()].reduce((sum, wire) => sum + count(wire), 0);
  }
}
