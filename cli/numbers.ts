/** Numbers of the command line. What is none is told: compared as one it would be above, or below, nothing. */
import { InvalidArgumentError } from "commander";

/** A whole number from 1 on: a generation, a count. */
export function positive(text: string): number {
  const value = Number(text);
  if (!Number.isSafeInteger(value) || value < 1) throw new InvalidArgumentError("it must be a whole number from 1 on");
  return value;
}

/** Of seconds, also in parts; and a port, 0 for any. */
export function notNegative(text: string): number {
  if (!/^\d+(\.\d+)?$/.test(text)) throw new InvalidArgumentError("it must be a number from 0 on");
  return Number(text);
}
