/**
 * The sidecar as a process: granted by a real controller, over a real API server and PostgreSQL, ended as a kubelet ends it.
 * The test is the application and the kubelet. Real pods run in e2e/.
 */
import { describe, expect, test } from "vitest";
import { parseReport } from "../lease/report.ts";
import { systemClock } from "../platform/clock.ts";
import { failure, until as untilSql } from "../testing/fenced.ts";
import { inScene } from "../testing/inscene.ts";
import { PATIENT_MS as MS_MAX, type PodScene, startPodScene } from "../testing/podscene.ts";
import { Renewals } from "../testing/renewals.ts";
import { until } from "../testing/until.ts";

let scene: PodScene;

inScene(startPodScene, (started) => {
  scene = started;
});

describe("the end", () => {
  test("A05, C06: what was committed before SIGTERM stays, what is open is undone, and the Lease is given back behind that", async () => {
    await scene.createJob();
    const pod = await scene.startPod(1);
    await scene.owns(pod, 1);
    await pod.tell("Running", { running: {} });
    const application = await scene.connect(pod);
    await application.query(scene.writes("committed"));
    await application.query("BEGIN");
    await application.query(scene.writes("open"));
    const late = failure(application.query("SELECT pg_sleep(60)"));
    process.kill(pod.sidecar.pid, "SIGTERM");
    expect(await pod.sidecar.ended).toBe(0);
    expect((await late).code).toMatch(/^(57P01|08007|ECONNRESET)$/);
    expect(await scene.rows()).toEqual(["committed"]);
    expect(pod.lastWords()).toEqual({ generation: 1, rejectedWrites: 0 });
    expect(await scene.lease()).toMatchObject({ holder: null, generation: 1 });
  });

  test("C05: while it waits for ownership, SIGTERM ends it at once, and the Lease is as it was", async () => {
    await scene.createJob({ standbys: { count: 1, application: "Started" } });
    const owner = await scene.startPod(1);
    await scene.owns(owner, 1);
    const waiting = await scene.startPod(2);
    const before = await scene.lease();
    process.kill(waiting.sidecar.pid, "SIGTERM");
    expect(await waiting.sidecar.ended).toBe(0);
    expect(await scene.lease()).toMatchObject({ holder: before.holder, generation: 1 });
    expect(waiting.lastWords).toThrow();
  });

  test("C05: what is granted while the modules load is given back when SIGTERM comes before they are there", async () => {
    const before = `process.stderr.write("loading"); Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 5e3)`;
    const hook = `import{registerHooks}from"node:module";registerHooks({load(url,context,next){if(url.endsWith("/cli/commands.ts")){${before}}return next(url,context)}})`;
    await scene.createJob();
    const pod = await scene.startPod(1, {
      ready: /loading/,
      env: { NODE_OPTIONS: `--import=data:text/javascript,${encodeURIComponent(hook)}` },
    });
    await until(async () => (await scene.lease()).holder === pod.uid, MS_MAX);
    process.kill(pod.sidecar.pid, "SIGTERM");
    expect(await pod.sidecar.ended).toBe(0);
    expect(await scene.lease()).toMatchObject({ holder: null, generation: 1 });
  });

  test("A05, C06: an owner that is deleted works for 20 s more, and its successor only behind that", async () => {
    await scene.createJob({ standbys: { count: 1 } });
    const pod = await scene.startOwner(1, 1);
    const standby = await scene.startPod(2);
    const application = await scene.connect(pod);
    const renewals = new Renewals();
    const stop = new AbortController();
    const following = renewals.follow(scene.leaseClient(), stop.signal);
    await scene.deletePod(pod);
    // The kubelet asks the application to end; its sidecar hears of it when it has.
    const endMs = systemClock.monoMs() + 20_000;
    for (; systemClock.monoMs() < endMs; await systemClock.sleep(100))
      await application.query(scene.writes("draining"));
    // Twice a lease: one that is not renewed would have been the standby's by now.
    expect(renewals.grants.size).toBe(1);
    console.log(`largest gap between renewals: ${Math.max(...renewals.gapsMs)} ms`);
    expect(await scene.lease()).toMatchObject({ holder: pod.uid, generation: 1 });
    await application.query(scene.writes("last"));
    await application.end();
    process.kill(pod.sidecar.pid, "SIGTERM");
    expect(await pod.sidecar.ended).toBe(0);
    expect(pod.lastWords()).toEqual({ generation: 1, rejectedWrites: 0 });
    await scene.podHasEnded(pod);
    await scene.owns(standby, 2);
    await (await scene.connect(standby)).query(scene.writes("next"));
    stop.abort();
    await following;
    expect((await scene.rows()).slice(-2)).toEqual(["last", "next"]);
    expect((await scene.status()).history).toMatchObject([{ generation: 1, reason: "PodDeleted" }]);
  });

  test("E07: a raise that waits for somebody's lock and an API server that is gone do not hold it up", async () => {
    await scene.fenced.job(`${scene.namespace}/run`).raise(1);
    await scene.admin.query("BEGIN");
    await scene.admin.query("SELECT FROM fence.job WHERE name = $1 FOR UPDATE", [`${scene.namespace}/run`]);
    await scene.createJob();
    const pod = await scene.startPod(1);
    await until(async () => (await pod.state()).state.startsWith("raising"), MS_MAX);
    await untilSql(await scene.fenced.connectAdmin(), "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted");
    await scene.server.stopApi();
    try {
      const startMs = systemClock.monoMs();
      process.kill(pod.sidecar.pid, "SIGTERM");
      // Neither of the two comes back before it has ended.
      expect(await pod.sidecar.ended).toBe(0);
      console.log(`ends in ${Math.round(systemClock.monoMs() - startMs)} ms with neither database nor API server`);
    } finally {
      await scene.admin.query("ROLLBACK");
      await scene.server.startApi();
    }
  });
});

describe("a takeover", () => {
  test("INV-3, INV-4: a standby whose application is started takes over from one that was killed: its held client writes, the other's work is undone", async () => {
    // Long: its pod's end is what ends the ownership.
    await scene.createJob({ lease: { durationSeconds: 120 }, standbys: { count: 1, application: "Started" } });
    const old = await scene.startPod(1);
    await scene.owns(old, 1);
    await old.tell("Running", { running: {} });
    const predecessor = await scene.connect(old);
    await predecessor.query(scene.writes("first"));
    const standby = await scene.startPod(2);
    await until(async () => (await standby.state()).started, MS_MAX);
    await standby.tell("Running", { running: {} });
    const held = scene.connect(standby);
    await until(async () => (await standby.state()).held === 1, MS_MAX);
    await predecessor.query("BEGIN");
    await predecessor.query(scene.writes("undone"));
    const over = failure(predecessor.query("SELECT pg_sleep(600)"));
    // The application ignores SIGTERM: both are killed when its time is over, nothing is given back.
    process.kill(old.sidecar.pid, "SIGKILL");
    await over;
    expect((await scene.lease()).holder).toBe(old.uid);
    await old.tell("Failed", { terminated: { exitCode: 137 } });
    const successor = await held;
    await successor.query(scene.writes("second"));
    expect(await scene.rows()).toEqual(["first", "second"]);
    expect(await scene.lease()).toMatchObject({ holder: standby.uid, generation: 2 });
    await until(async () => parseReport((await scene.lease()).report)?.served, MS_MAX);
    // INV-9: from here on its success is the job's.
    await successor.end();
    process.kill(standby.sidecar.pid, "SIGTERM");
    expect(await standby.sidecar.ended).toBe(0);
    await standby.tell("Succeeded", { terminated: { exitCode: 0 } });
    await until(
      async () =>
        (await scene.status()).conditions.some(({ type, status }) => type === "Complete" && status === "True"),
      MS_MAX,
    );
  });

  test("INV-9: a started standby that ended well without ever having been served has not done the job", async () => {
    await scene.createJob({ standbys: { count: 0, application: "Started" }, backoffLimit: 0 });
    const pod = await scene.startPod(1);
    await scene.owns(pod, 1);
    process.kill(pod.sidecar.pid, "SIGTERM");
    await pod.sidecar.ended;
    await pod.tell("Succeeded", { terminated: { exitCode: 0 } });
    const { history, conditions } = await until(async () => {
      const now = await scene.status();
      return now.completionTime ? now : null;
    }, MS_MAX);
    expect(history[0]?.reason).toBe("EndedUnserved");
    expect(conditions.find(({ type }) => type === "Failed")?.message).toContain("must wait for its first connection");
  });
});
