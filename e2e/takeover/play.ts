/** One scenario from its job to what it measured, with what holds for each. */
import { expect } from "vitest";
import type { Measured } from "./results.ts";
import type { Scenario } from "./scenarios.ts";
import type { Stage } from "./stage.ts";

export async function play(stage: Stage, scenario: Scenario): Promise<Measured> {
  const {
    id,
    job,
    waitsForLease = false,
    startsWhereItMayBeLost,
    prepare,
    act,
    sinceLastRow,
    reason,
    verify,
  } = scenario;
  const asked = { ...(await job?.(stage)), waitsForLease, name: id };
  try {
    await (startsWhereItMayBeLost ? stage.createWhereItMayBeLost(asked) : stage.create(asked));
    await stage.owner(id);
    await prepare?.(stage, id);
    const taken = await stage.takeover(id, act(stage, id), sinceLastRow ? "lastRow" : "cause");
    // INV-3, in the order of commits.
    expect(taken.staleRows).toBe(0);
    expect(taken.reason).toBe(reason);
    await verify?.(stage, id, taken);
    const { takeoverMs, silentMs, staleRows } = taken;
    return { id, takeoverMs, silentMs, staleRows };
  } finally {
    await stage.remove(id);
  }
}
