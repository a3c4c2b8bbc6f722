/** Kubernetes MicroTime: `Lease.spec.renewTime` needs exactly six fractional digits; three are answered 400. */
import type { Wall } from "../platform/clock.ts";

/** `2026-11-29T13:02:11.123000Z` from a wall clock reading. */
export function microTime(wall: Wall): string {
  return wall.toISOString().replace(/\.(\d{3})Z$/, ".$1000Z");
}

/**
 * The micro time of a new renewal, one that differs from `previous` in any case: the holder recognises its own write
 * by this value (a wall clock that stands still or jumps back must not make two renewals look the same).
 */
export function nextMicroTime(wall: Wall, previous: string | null): string {
  const next = microTime(wall);
  if (next !== previous) return next;
  return next.replace(/000Z$/, "001Z");
}
