/**
 * Cancel requests: clients get keys of the proxy, which stand for the server's own.
 *
 * Does NOT send a cancel on for an idle session, and while one is under way the session sends nothing new: a late
 * cancel cannot hit a later query.
 */
import { timingSafeEqual } from "node:crypto";
import type { DatabaseAddress } from "../../fence/database.ts";
import { openSocket, type Route } from "../../fence/socket.ts";
import type { Clock } from "../../platform/clock.ts";
import { within } from "../../platform/within.ts";
import { message } from "./messages.ts";

export interface CancelTarget {
  readonly key: Buffer;
  /** Something runs that may be cancelled. */
  readonly busy: () => boolean;
  /** Delivers the cancel to the server. */
  readonly cancel: () => void;
}

const CANCEL_CODE = 80877102;
const CANCEL_MS_MAX = 5_000;

export class CancelKeys {
  /** By server process; a pooler may give several sessions the same. */
  readonly #targets = new Map<number, Set<CancelTarget>>();

  /** `pid` is the server's own: clients compare it with the sender of their notifications. */
  add(pid: number, target: CancelTarget): void {
    const targets = this.#targets.get(pid) ?? new Set();
    this.#targets.set(pid, targets.add(target));
  }

  remove(pid: number, target: CancelTarget): void {
    const targets = this.#targets.get(pid);
    targets?.delete(target);
    if (targets?.size === 0) this.#targets.delete(pid);
  }

  /** A wrong key is ignored, as the server does. */
  request(pid: number, key: Buffer): void {
    for (const target of this.#targets.get(pid) ?? []) {
      if (target.key.length === key.length && timingSafeEqual(target.key, key) && target.busy()) target.cancel();
    }
  }
}

export function cancelRequest(pid: number, key: Buffer): Buffer {
  const head = Buffer.alloc(8);
  head.writeUInt32BE(CANCEL_CODE, 0);
  head.writeInt32BE(pid, 4);
  return message(0, Buffer.concat([head, key]));
}

/** A session of the server that may be cancelled: its key, and the way that leads to just this server. */
export interface Cancellable {
  readonly route: Route;
  readonly pid: number;
  readonly key: Buffer;
}

/** Resolves when the server has closed the cancel connection: the signal was sent, or never will be. */
export async function sendCancel(address: DatabaseAddress, session: Cancellable, clock: Clock): Promise<void> {
  const deliver = async (signal: AbortSignal): Promise<void> => {
    const socket = await openSocket(address, session.route, signal);
    signal.addEventListener("abort", () => socket.destroy(), { once: true });
    socket.resume();
    // Not ended by us: PgBouncer would take that for a client that has changed its mind.
    socket.write(cancelRequest(session.pid, session.key));
    await new Promise<void>((resolve) => socket.once("close", () => resolve()));
  };
  // A failure is as a server that cannot be reached: the cancel is lost, and cancels are never acknowledged.
  await within({ clock, timeoutMs: CANCEL_MS_MAX }, deliver).catch(() => {});
}
