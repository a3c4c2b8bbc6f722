/** What the scenarios of permanence have in common: edits of objects, and what can be seen of a fence. */
import { expect } from "vitest";
import type { ConditionType } from "../../controller/api/reasons.ts";
import type { Condition } from "../../controller/api/status.ts";
import { RESOURCES } from "../../controller/kube/api.ts";
import type { RawObject } from "../../controller/kube/objects.ts";
import { type FenceRow, readFence } from "../../fence/client.ts";
import { addressFromUrl } from "../../fence/url.ts";
import { systemClock as clock } from "../../platform/clock.ts";
import { until } from "../../testing/until.ts";
import type { LedgerOptions } from "./ledger.ts";
import { deletePod, type Scenario } from "./scenarios.ts";
import { STEP_MS_MAX, type Stage } from "./stage.ts";

export interface PermanenceScenario extends Scenario {
  /** A database of its own, to which something is done. */
  readonly database?: LedgerOptions;
  /** A namespace of its own, to which something is done. */
  readonly ownNamespace?: boolean;
}

export const keyOf = ({ scene }: Stage, name: string) => ({ namespace: scene.namespace, name });
export const patchJob = (stage: Stage, name: string, patch: object): Promise<unknown> =>
  stage.scene.api.patch(RESOURCES.fencedJobs, keyOf(stage, name), patch);
export const patchStatus = (stage: Stage, name: string, status: object): Promise<unknown> =>
  stage.scene.api.patch(RESOURCES.fencedJobs, keyOf(stage, name), { status }, { subresource: "status" });
export const patchLease = (stage: Stage, name: string, patch: object): Promise<unknown> =>
  stage.scene.api.patch(RESOURCES.leases, keyOf(stage, name), patch);
/** Waits until this condition is True, and returns it. */
export const isTrue = ({ scene }: Stage, name: string, type: ConditionType): Promise<Condition> =>
  until(
    async () => {
      const condition = await scene.condition(name, type);
      return condition?.status === "True" && condition;
    },
    STEP_MS_MAX,
    { what: `${name} is ${type}` },
  );
export const editDuration = (stage: Stage, name: string, leaseDurationSeconds: number): Promise<unknown> =>
  patchLease(stage, name, { spec: { leaseDurationSeconds } });

export async function duration(stage: Stage, name: string): Promise<number | undefined> {
  const lease = await stage.scene.api.get<RawObject>(RESOURCES.leases, keyOf(stage, name));
  return (lease.spec as { leaseDurationSeconds?: number }).leaseDurationSeconds;
}

export async function fenceRow({ scene, ledger }: Stage, name: string, database?: string): Promise<FenceRow> {
  const row = await readFence(addressFromUrl(ledger.uriOf(database)), `${scene.namespace}/${name}`, { clock });
  if (!row) throw new Error(`no fence of ${name}`);
  return row;
}

/** The owner has written on through so many of its heartbeats. */
export async function heartbeats(stage: Stage, name: string, count: number): Promise<void> {
  const counter = async (): Promise<number> => (await fenceRow(stage, name)).witness?.counter ?? 0;
  const first = await counter();
  await until(async () => (await counter()) >= first + count, STEP_MS_MAX, { what: `${count} heartbeats of ${name}` });
}

/** Another owner, and it writes. */
export async function nextOwner(stage: Stage, name: string): Promise<void> {
  await stage.takeover(name, deletePod()(stage));
}

/** Of the owner, once the status tells of its raise: an application may have written before that came into it. */
export async function generationIs(stage: Stage, name: string, isIt: (generation: number) => boolean): Promise<void> {
  const told = async (): Promise<number | false> => {
    const { generation, owner, fence } = await stage.scene.status(name);
    return owner?.generation === generation && fence === generation && generation;
  };
  const what = `${name} has one generation, which its owner has raised`;
  expect(await until(told, STEP_MS_MAX, { what })).toSatisfy(isIt);
}
