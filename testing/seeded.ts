/** Randomness that a seed repeats, for tests that print the seed when they fail. */
import type { Random } from "../platform/random.ts";

export function seededRandom(seed: number): Random {
  let state = seed >>> 0;
  const unit = (): number => {
    // A Weyl sequence through a mixing function: good enough to spread choices, and short.
    state = (state + 0x9e3779b9) >>> 0;
    let mixed = state;
    mixed = Math.imul(mixed ^ (mixed >>> 16), 0x21f0aaad);
    mixed = Math.imul(mixed ^ (mixed >>> 15), 0x735a2d97);
    return ((mixed ^ (mixed >>> 15)) >>> 0) / 2 ** 32;
  };
  return { unit, bytes: (length) => Buffer.from(Array.from({ length }, () => Math.floor(unit() * 256))) };
}
