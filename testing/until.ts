/** Waits for a fact about the world outside of this process, by asking; the answer is what the caller goes on with. */

export interface Waiting {
  /** What is waited for, in the message; the source of `ask` if absent. */
  readonly what?: string;
  /** A failure of `ask` ends the wait and is thrown at once. Otherwise it counts as "not yet", and is thrown at the end. */
  readonly failureEnds?: boolean;
  readonly pollMs?: number;
}

/** What is slow on a busy machine is no failure; below the time that a test has, so that the wait says what it was for. */
const WAIT_MS_MAX = 120_000;

/** The first answer of `ask` that is neither null, undefined nor false. Throws when there is none within `msMax`. */
export async function until<T>(
  ask: () => Promise<T | null | undefined | false> | T | null | undefined | false,
  msMax = WAIT_MS_MAX,
  { what = String(ask), failureEnds = false, pollMs = 50 }: Waiting = {},
): Promise<T> {
  const endMs = performance.now() + msMax;
  for (;;) {
    let failure: unknown;
    try {
      const answer = await ask();
      if (answer !== null && answer !== undefined && answer !== false) return answer;
    } catch (error) {
      if (failureEnds) throw error;
      failure = error;
    }
    if (performance.now() >= endMs) throw failure ?? new Error(`not so within ${msMax} ms: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, pollMs));
  }
}
