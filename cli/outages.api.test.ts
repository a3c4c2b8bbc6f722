/**
 * The API server goes away and comes back under owners at work, candidates that wait and a controller that follows them: real
 * processes all of them (D01). How long the outages were is printed; a takeover without an API server there is none.
 */
import { expect, onTestFinished, test } from "vitest";
import { RESOURCES } from "../controller/kube/api.ts";
import type { KubeObject } from "../controller/kube/objects.ts";
import { systemClock } from "../platform/clock.ts";
import { startFaultyWay } from "../testing/faultyway.ts";
import { inScene } from "../testing/inscene.ts";
import { PATIENT_MS, type PodScene, startPodScene } from "../testing/podscene.ts";
import { Renewals } from "../testing/renewals.ts";
import { until } from "../testing/until.ts";

/** Longer than an API server takes to start on a busy machine. */
const DEADLINE_SECONDS = 89;
const LEASE = { durationSeconds: 90, renewIntervalSeconds: 3, requestTimeoutSeconds: 2, marginSeconds: 1 };

let scene: PodScene;

inScene(startPodScene, (started) => {
  scene = started;
});

const sinceMs = (startMs: number): number => Math.round(systemClock.monoMs() - startMs);
/** The one beside the owner and the candidate that runs, once it is the only one. */
async function spare(): Promise<KubeObject> {
  const { items } = await scene.api.list<KubeObject>(RESOURCES.pods, { namespace: scene.namespace });
  const [one, ...more] = items.filter(({ metadata }) => !["run-1", "run-2"].includes(metadata.name));
  if (!one || more.length) throw new Error(`${items.length} pods`);
  return one;
}

test("three restarts of the API server in a row: the owner works on, the controller follows again, the candidate hears of its grant", {
  timeout: 600_000,
}, async () => {
  await scene.createJob({ lease: LEASE, standbys: { count: 2 } });
  const owner = await scene.startOwner(1, 1);
  const standby = await scene.startPod(2);
  const application = await scene.connect(owner);
  const renewals = new Renewals();
  const stop = new AbortController();
  onTestFinished(() => stop.abort());
  const following = renewals.follow(scene.leaseClient(), stop.signal);
  const working = (async () => {
    for (; !stop.signal.aborted; await systemClock.sleep(100)) await application.query(scene.writes("on"));
  })();
  working.catch(() => {});
  const told: string[] = [];
  for (let restart = 1; restart <= 3; restart++) {
    await until(spare, PATIENT_MS);
    await scene.server.stopApi();
    const outageMs = systemClock.monoMs();
    await systemClock.sleep(4_000);
    await scene.server.startApi();
    const backMs = systemClock.monoMs();
    expect(backMs - outageMs).toBeLessThan(1000 * DEADLINE_SECONDS);
    // Nobody runs this one: as if its node were gone, and the controller makes another.
    const { name, uid } = (await until(spare, PATIENT_MS)).metadata;
    await scene.api.delete(RESOURCES.pods, { namespace: scene.namespace, name }, { preconditions: { uid: uid ?? "" } });
    await until(async () => (await spare()).metadata.uid !== uid, PATIENT_MS);
    told.push(`${Math.round(backMs - outageMs)} ms away, followed again after ${sinceMs(backMs)} ms`);
  }
  stop.abort();
  await Promise.all([working, following]);
  expect(renewals.grants.size).toBe(1);
  expect(await owner.state()).toMatchObject({ state: "owner, generation 1", rejectedWrites: 0 });
  await application.end();
  process.kill(owner.sidecar.pid, "SIGTERM");
  await owner.sidecar.ended;
  await owner.tell("Failed", { terminated: { exitCode: 1 } });
  const endedMs = systemClock.monoMs();
  await scene.owns(standby, 2);
  console.log(
    `the API server: ${told.join("; ")}; then the candidate owns ${sinceMs(endedMs)} ms after its predecessor's end`,
  );
});

test("a candidate that is granted while its watch is broken sees it when it watches again, and it watches for minutes", async () => {
  const way = await startFaultyWay(scene.server);
  onTestFinished(() => way.stop());
  // So long that a grant which it cannot see yet is still its own when it does.
  await scene.createJob({ lease: LEASE, standbys: { count: 1 } });
  const owner = await scene.startOwner(1, 1);
  const candidate = await scene.startPod(2, { way });
  const watches = () => way.passed.filter(({ path }) => path.includes("watch=true"));
  await until(() => watches().length === 1);
  way.fault = () => ({ kind: "instead", status: 503 });
  way.cut();
  process.kill(owner.sidecar.pid, "SIGTERM");
  await owner.sidecar.ended;
  await owner.tell("Failed", { terminated: { exitCode: 1 } });
  await until(async () => (await scene.lease()).holder === candidate.uid);
  await until(() => watches().length > 2);
  expect((await candidate.state()).state).toBe("waiting for ownership");
  way.fault = () => null;
  await scene.owns(candidate, 2);
  const seconds = watches().map(({ path }) => Number(/timeoutSeconds=(\d+)/.exec(path)?.[1]));
  expect(Math.min(...seconds)).toBeGreaterThanOrEqual(300);
  expect(new Set(seconds).size).toBeGreaterThan(1);
});
