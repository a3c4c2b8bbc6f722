/**
 * Cancel requests: clients get keys of the proxy, which stand for the server's own.
 *
 * Does NOT send a cancel on for an idle session, and while one is under way the session sends nothing new: a late
 * cancel cannot hit a later query.
 */
import { timingSafeEqual } from "node:crypto";
import { message } from "./messages.ts";

export interface CancelTarget {
  readonly key: Buffer;
  /** Something runs that may be cancelled. */
  readonly busy: () => boolean;
  /** Delivers the cancel to the server. */
  readonly cancel: () => void;
}

const CANCEL_CODE = 80877102;

export class CancelKeys {
  readonly #targets = new Map<number, CancelTarget>();

  /** `pid` is the server's own: clients compare it with the sender of their notifications. */
  add(pid: number, target: CancelTarget): void {
    this.#targets.set(pid, target);
  }

  remove(pid: number, target: CancelTarget): void {
    if (this.#targets.get(pid) === target) this.#targets.delete(pid);
  }

  /** A wrong key is ignored, as the server does. */
  request(pid: number, key: Buffer): void {
    const target = this.#targets.get(pid);
    if (!target || target.key.length !== key.length || !timingSafeEqual(target.key, key)) return;
    if (target.busy()) target.cancel();
  }
}

export function cancelRequest(pid: number, key: Buffer): Buffer {
  const head = Buffer.alloc(8);
  head.writeUInt32BE(CANCEL_CODE, 0);
  head.writeInt32BE(pid, 4);
  return message(0, Buffer.concat([head, key]));
}
