/**
 * `node bench/soak.ts --minutes 60`: whether anything loses its Lease for no reason. A sidecar that proxies pgbench and two
 * controllers renew at a real API server, on this machine with whatever else it does; nothing is made to fail.
 *
 * What is told is from send to send, by the renewal times that the API server stored. `--write` keeps it in bench/results/.
 */

import { loadavg } from "node:os";
import { parseArgs } from "node:util";
import { command } from "../conformance/command.ts";
import { PGBENCH } from "../conformance/pgbench.ts";
import { readStatus } from "../controller/api/status.ts";
import { RESOURCES } from "../controller/kube/api.ts";
import type { RawObject } from "../controller/kube/objects.ts";
import { SIDECAR_NAME } from "../controller/snapshot.ts";
import { LeaseClient } from "../lease/client.ts";
import { DEFAULT_ELECTION_TIMING, type LeaseTiming } from "../lease/timing.ts";
import { systemClock } from "../platform/clock.ts";
import { ELECTION_LEASE, startControllerProcess } from "../testing/controllerprocess.ts";
import { startJobServer } from "../testing/jobserver.ts";
import { freePort } from "../testing/postgres.ts";
import { Renewals } from "../testing/renewals.ts";
import { startSidecarProcess } from "../testing/sidecarprocess.ts";
import { until } from "../testing/until.ts";
import { quantile } from "./figures.ts";
import { startGround } from "./ground.ts";
import { machineFacts } from "./machine.ts";
import { writeSoak } from "./results.ts";

/** The defaults of spec.lease. */
const OWNER: LeaseTiming = { durationMs: 10_000, renewIntervalMs: 3_000, requestTimeoutMs: 2_000, marginMs: 1_000 };
const NAMESPACE = "soak";
const JOB = "soak";
const CLIENTS = 8;
const LOAD_SECONDS = 60;
/** As a kubelet would say. */
const RUNNING = {
  status: {
    phase: "Running",
    initContainerStatuses: [
      { name: SIDECAR_NAME, image: "x", imageID: "x", ready: true, restartCount: 0, state: { running: {} } },
    ],
  },
};

const { values } = parseArgs({
  options: {
    minutes: { type: "string", default: "60" },
    rate: { type: "string", default: "300" },
    write: { type: "boolean" },
  },
});

function factsOf({ gapsMs, grants }: Renewals, timing: LeaseTiming) {
  const sorted = Float64Array.from(gapsMs).sort();
  return {
    holders: grants.size,
    renewals: sorted.length + 1,
    intervalMs: timing.renewIntervalMs,
    gapMedianMs: Math.round(quantile(sorted, 0.5)),
    gapP99Ms: Math.round(quantile(sorted, 0.99)),
    gapMaxMs: Math.round(sorted.at(-1) ?? 0),
    /** A longer gap would have stopped the holder. */
    gapAllowedMs: timing.durationMs - timing.marginMs,
  };
}

const end: (() => Promise<unknown> | unknown)[] = [];
try {
  await soak(Number(values.minutes));
} finally {
  for (const one of end.reverse()) await one();
}

async function soak(minutes: number): Promise<void> {
  const startedAt = systemClock.wall().toISOString();
  const ground = await startGround();
  end.push(() => ground.stop());
  const jobServer = await startJobServer();
  end.push(() => jobServer.stop());
  const { server, client, api } = jobServer;
  await server.createNamespace(NAMESPACE);
  for (const name of ["a", "b"]) {
    const controller = await startControllerProcess({ server, namespace: NAMESPACE, name });
    end.push(() => controller.stop());
  }
  const port = await freePort();
  await api.create(RESOURCES.fencedJobs, job(port));
  const pod = await until(() => api.get<RawObject>(RESOURCES.pods, { namespace: NAMESPACE, name: `${JOB}-1` }));
  await api.patch(RESOURCES.pods, { namespace: NAMESPACE, name: `${JOB}-1` }, RUNNING, { subresource: "status" });
  const { host, user, database } = ground.address;
  const uri = `postgres://${user}@${host}:${ground.address.port}/${database}?sslmode=disable`;
  const sidecar = await startSidecarProcess({ server, pod, uri });
  end.push(() => sidecar.signal("SIGKILL"));
  console.log(`soaking for ${minutes} min`);

  const stop = new AbortController();
  const owner = new Renewals();
  const leader = new Renewals();
  const watching = [
    owner.follow(new LeaseClient(client, { namespace: NAMESPACE, name: JOB }), stop.signal),
    leader.follow(new LeaseClient(client, { namespace: NAMESPACE, name: ELECTION_LEASE }), stop.signal),
  ];
  const loads: number[] = [];
  const load = { transactions: 0, runs: 0, failedRuns: 0 };
  const endMs = systemClock.monoMs() + minutes * 60_000;
  while (systemClock.monoMs() < endMs) {
    const seconds = Math.ceil(Math.min(LOAD_SECONDS, (endMs - systemClock.monoMs()) / 1000));
    const { code, stdout, stderr } = await command(PGBENCH, pgbenchArgs(seconds), {
      env: { PGHOST: "127.0.0.1", PGPORT: String(port), PGUSER: user, PGDATABASE: database, PGSSLMODE: "disable" },
      timeoutMs: (seconds + LOAD_SECONDS) * 1000,
    });
    load.runs++;
    load.transactions += Number(/actually processed: (\d+)/.exec(stdout)?.[1] ?? 0);
    if (code !== 0) {
      load.failedRuns++;
      console.error(`pgbench ended with ${code}: ${stderr.slice(-2_000)}`);
    }
    loads.push(loadavg()[0] ?? 0);
    const { generation, history } = readStatus(
      (await api.get<RawObject>(RESOURCES.fencedJobs, { namespace: NAMESPACE, name: JOB })).status,
    );
    const result = {
      startedAt,
      machine: machineFacts(),
      minutes: Math.round((minutes * 60_000 - (endMs - systemClock.monoMs())) / 6_000) / 10,
      loadOfMachine: { mean: round(loads.reduce((a, b) => a + b) / loads.length), max: round(Math.max(...loads)) },
      pgbench: { clients: CLIENTS, ratePerSecond: Number(values.rate), ...load },
      job: { generation, ownersLost: history.length, ...factsOf(owner, OWNER) },
      controllers: factsOf(leader, DEFAULT_ELECTION_TIMING),
    };
    console.log(JSON.stringify(result));
    if (values.write) writeSoak(result);
  }
  stop.abort();
  await Promise.all(watching);
}

function pgbenchArgs(seconds: number): string[] {
  return ["-n", "-M", "prepared", "-c", String(CLIENTS), "-j", "2", "-T", String(seconds), "--rate", values.rate];
}

function job(port: number): RawObject {
  const app = { name: "app", image: "app" };
  const object = {
    apiVersion: "fencedjob.dev/v1alpha1",
    kind: "FencedJob",
    metadata: { name: JOB, namespace: NAMESPACE },
    spec: { databases: [{ name: "bench", secretName: "bench", port }], template: { spec: { containers: [app] } } },
  };
  return object;
}

function round(value: number): number {
  return Math.round(value * 10) / 10;
}
