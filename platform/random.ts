/** Randomness, from outside, so that a simulation can draw it from its seed. */
import { randomBytes } from "node:crypto";

export interface Random {
  /** A number in [0, 1), for jitter. */
  unit(): number;
  /** Unpredictable bytes, for nonces and cancel keys. */
  bytes(length: number): Buffer;
}

export const systemRandom: Random = {
  unit: () => Math.random(),
  bytes: (length) => randomBytes(length),
};

/** `ms` spread by ±`share` (0.2 = ±20 %), so that many waiters do not act at once. */
export function jitter(random: Random, ms: number, share = 0.2): number {
  return ms * (1 + share * (2 * random.unit() - 1));
}
