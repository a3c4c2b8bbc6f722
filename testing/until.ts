/** Waits for a fact about a real server, by asking it; the answer is what the test goes on with. */

const POLL_MS = 50;

/**
 * The first answer of `ask` that is neither null, undefined nor false. A failure of `ask` counts as "not yet"; at the end
 * of the time it is thrown, or a message with the last answer.
 */
export async function until<T>(
  ask: () => Promise<T | null | undefined | false> | T | null | undefined | false,
  msMax = 30_000,
): Promise<T> {
  const endMs = Date.now() + msMax;
  for (;;) {
    let failure: unknown;
    try {
      const answer = await ask();
      if (answer !== null && answer !== undefined && answer !== false) return answer;
    } catch (error) {
      failure = error;
    }
    if (Date.now() >= endMs) throw failure ?? new Error(`not so within ${msMax} ms: ${ask}`);
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
}
