/** For tests: a proxy of one generation in front of a server with the fence schema. */
import pg from "pg";
import { onTestFinished } from "vitest";
import { Permit } from "../lease/permit.ts";
import { systemClock } from "../platform/clock.ts";
import { silentLogger } from "../platform/log.ts";
import { systemRandom } from "../platform/random.ts";
import type { Served } from "../sidecar/wire/admission.ts";
import { type ProxyConfig, type RunningProxy, startProxy } from "../sidecar/wire/proxy.ts";
import { fenceVerdict } from "../sidecar/wire/verdict.ts";
import type { Fenced, JobOfTest } from "./fenced.ts";

export interface ProxyOfTest {
  readonly jobId: number;
  readonly proxy: RunningProxy;
  readonly permit: Permit;
  readonly port: number;
  /** A node-postgres client through the proxy; ended by `stop`. */
  connect(config?: pg.ClientConfig): Promise<pg.Client>;
  stop(): Promise<void>;
}

const FAR_MS = 86_400_000;
let jobs = 0;

export interface ServedJob {
  readonly job: JobOfTest;
  readonly jobId: number;
  readonly proxy: ProxyOfTest;
}

/** A job of its own, generation 1 of which is raised, and served until the test ends. */
export async function serveNewJob(fenced: Fenced, options: Partial<ProxyConfig & Served> = {}): Promise<ServedJob> {
  const job = fenced.job(`test/served-${++jobs}`);
  const proxy = await serve(job, 1, options);
  return { job, jobId: proxy.jobId, proxy };
}

/** Raises `generation`, and serves it until the test ends. */
export async function serve(
  job: JobOfTest,
  generation: number,
  options: Partial<ProxyConfig & Served> = {},
): Promise<ProxyOfTest> {
  const proxy = await startFencedProxy(job, generation, options);
  onTestFinished(() => proxy.stop());
  return proxy;
}

/** Listens on a port of its choice; nobody is served yet. */
export function startHoldingProxy(options: Partial<ProxyConfig> & Pick<ProxyConfig, "permit">): Promise<RunningProxy> {
  return startProxy({
    listen: { host: "127.0.0.1", port: 0 },
    clock: systemClock,
    random: systemRandom,
    log: silentLogger,
    drainMs: 500,
    ...options,
  });
}

/** Raises `generation`, and serves it until `stop`: for a proxy that several tests share. */
export async function startFencedProxy(
  job: JobOfTest,
  generation: number,
  options: Partial<ProxyConfig & Served> = {},
): Promise<ProxyOfTest> {
  const { jobId, incarnation } = await job.raise(generation);
  const identity = job.identity(generation);
  const permit = options.permit ?? new Permit();
  if (!options.permit) {
    permit.extend(systemClock.monoMs() + FAR_MS);
    permit.open();
  }
  const proxy = await startHoldingProxy({ permit, ...options });
  const verdict = fenceVerdict(() => job.address, { identity, incarnation }, systemClock);
  proxy.serve({ address: job.address, jobId, incarnation, identity, verdict, ...options });
  const open: pg.Client[] = [];
  const { port } = proxy;
  return {
    jobId,
    proxy,
    permit,
    port,
    connect: async (config = {}) => {
      const client = new pg.Client({
        host: "127.0.0.1",
        port,
        user: "anyone",
        password: "ignored",
        database: job.address.database,
        ...config,
      });
      client.on("error", () => {});
      await client.connect();
      open.push(client);
      return client;
    },
    stop: async () => {
      for (const client of open) void client.end().catch(() => {});
      await proxy.close();
    },
  };
}
