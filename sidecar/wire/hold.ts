/**
 * What clients wait for together: decided once, then told to those that wait and to all that come later.
 *
 * Who leaves before takes everything with it: a hold may last for days, and clients come and go.
 */
export class Hold<T> {
  #decided: { readonly outcome: T } | undefined;
  readonly #waiting = new Set<() => void>();

  /** The first outcome stands; a later one is not heard. */
  decide(outcome: T): void {
    this.#decided ??= { outcome };
    for (const wake of this.#waiting) wake();
  }

  /** The outcome; rejects with the signal's reason for who leaves before. */
  async outcome(signal: AbortSignal): Promise<T> {
    while (!this.#decided) {
      signal.throwIfAborted();
      await this.#news(signal);
    }
    return this.#decided.outcome;
  }

  #news(signal: AbortSignal): Promise<void> {
    return new Promise((resolve) => {
      const wake = (): void => {
        this.#waiting.delete(wake);
        signal.removeEventListener("abort", wake);
        resolve();
      };
      this.#waiting.add(wake);
      signal.addEventListener("abort", wake, { once: true });
    });
  }
}
