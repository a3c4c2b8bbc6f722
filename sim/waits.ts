/**
 * What a controller lets pass before it acts, however far its wall clock and the other's are apart: the minute of a superseded pod, the
 * pause behind failures. In true time, and as long as nobody has edited or restored what it goes by.
 */
import type { FencedJobStatus } from "../controller/api/status.ts";
import { violated } from "./violation.ts";

const LINGER_MS = 60_000;
const BACKOFF_MS_BASE = 1_000;
const BACKOFF_MS_MAX = 300_000;
/** Times in a status are whole seconds, and so are those by which an API server tells its own. */
const INEXACT_MS = 2_500;

export class Waits {
  #failedMs = 0;
  readonly #endedMs = new Map<string, number>();

  written(before: FencedJobStatus, after: FencedJobStatus, nowMs: number): void {
    if (before.owner && before.owner.uid !== after.owner?.uid) this.#endedMs.set(before.owner.uid, nowMs);
    if (after.failures > before.failures) this.#failedMs = nowMs;
    const known = new Set(before.candidates.map(({ attempt }) => attempt));
    const made = after.candidates.find(({ attempt, closes }) => !closes && !known.has(attempt));
    if (!made || after.failures < 2) return;
    const pauseMs = Math.min(BACKOFF_MS_BASE * 2 ** (after.failures - 1), BACKOFF_MS_MAX);
    const forMs = nowMs - this.#failedMs;
    if (forMs < pauseMs - INEXACT_MS) {
      violated(
        `${made.pod} was made ${forMs / 1000} s behind failure ${after.failures}, which is followed by ${pauseMs / 1000} s of rest`,
      );
    }
  }

  deletedByController(uid: string, { history, completionTime, failing }: FencedJobStatus, nowMs: number): void {
    const past = history.find((one) => one.uid === uid);
    const endedMs = this.#endedMs.get(uid);
    if (!past || past.reason === "SpecChanged" || endedMs === undefined || completionTime || failing) return;
    const forMs = nowMs - endedMs;
    if (forMs < LINGER_MS - INEXACT_MS) violated(`${past.pod} was deleted ${forMs / 1000} s after it was superseded`);
  }
}
