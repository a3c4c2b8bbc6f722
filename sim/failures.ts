/** A job that has failed is over: it is told when its fences are closed, or were tried for long enough, and nothing commits behind it. */
import type { ConditionType } from "../controller/api/reasons.ts";
import type { FencedJobStatus } from "../controller/api/status.ts";
import { violated } from "./violation.ts";

/** Of the 60 s for which closing is tried, by the slowest clock. */
const CLOSES_MS = 55_000;

export class Failures {
  /** The job has failed, and says that no generation is let in. */
  #over = false;
  #failingSinceMs: number | undefined;

  /** A controller has written the status. */
  written(before: FencedJobStatus, after: FencedJobStatus, nowMs: number): void {
    if (after.failing && !before.failing) this.#failingSinceMs = nowMs;
    const open = after.fences.filter(({ closed }) => !closed);
    const failed = isTrue(after, "Failed");
    if (failed && !isTrue(before, "Failed") && open.length) {
      const triedMs = nowMs - (this.#failingSinceMs ?? nowMs);
      if (triedMs < CLOSES_MS) violated(`INV-3: the job has failed with an open fence of ${open[0]?.database}`);
    }
    this.#over = failed && open.length === 0;
  }

  work(): void {
    if (this.#over) violated("INV-3: work was committed behind the end of a job that has failed");
  }

  /** Its status is lost, or it is another job. */
  forgotten(): void {
    this.#over = false;
    this.#failingSinceMs = undefined;
  }
}

export const isTrue = ({ conditions }: FencedJobStatus, wanted: ConditionType): boolean =>
  conditions.some(({ type, status }) => type === wanted && status === "True");
