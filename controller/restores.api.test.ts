/**
 * Permanence (INV-8), for real: etcd comes back from a backup, a FencedJob is made anew or restored without its status, a second cluster
 * has a FencedJob of the same fence. Real API servers, the real controller and sidecars, a real PostgreSQL that judges.
 */

import type pg from "pg";
import { afterAll, afterEach, beforeAll, expect, test } from "vitest";
import { systemClock } from "../platform/clock.ts";
import type { TestApiServer } from "../testing/apiserver.ts";
import { startTestController } from "../testing/controller.ts";
import { type Fenced, startFenced } from "../testing/fenced.ts";
import { startJobServer } from "../testing/jobserver.ts";
import { PodHost } from "../testing/podhost.ts";
import { until } from "../testing/until.ts";
import type { FencedJobStatus, Owner } from "./api/status.ts";
import { type KubeApi, RESOURCES } from "./kube/api.ts";
import { isNotFound } from "./kube/errors.ts";

const JOB = { namespace: "billing", name: "run" };

interface ClusterOfTest {
  readonly server: TestApiServer;
  readonly api: KubeApi;
  readonly host: PodHost;
  status(): Promise<FencedJobStatus>;
  condition(type: string): Promise<string>;
  /** Once it has raised its fence. */
  owner(isIt: (owner: Owner) => boolean): Promise<Owner>;
  create(spec?: object): Promise<void>;
  stop(): Promise<void>;
}

let fenced: Fenced;
let admin: pg.Client;
const open: { stop(): Promise<void> }[] = [];

beforeAll(async () => {
  fenced = await startFenced({ version: 18 });
  admin = await fenced.connectAdmin();
  await admin.query(
    `CREATE TABLE written (generation bigint); GRANT SELECT, INSERT ON written TO ${fenced.address.user}`,
  );
});

afterAll(() => fenced?.stop());

afterEach(async () => {
  for (const one of open.splice(0)) await one.stop();
  await admin.query("TRUNCATE written; TRUNCATE fence.job, fence.claim");
});

async function aCluster(): Promise<ClusterOfTest> {
  const jobServer = await startJobServer();
  const { server, kube, api } = jobServer;
  await server.createNamespace(JOB.namespace);
  const lease = { namespace: JOB.namespace, name: "fencedjob-controller" };
  const controller = await startTestController({ kube, lease });
  const host = new PodHost({ server, api, namespace: JOB.namespace, address: fenced.address });
  const status = (): Promise<FencedJobStatus> => jobServer.status(JOB);
  const cluster: ClusterOfTest = {
    server,
    api,
    host,
    status,
    condition: async (type) => {
      const found = (await status()).conditions.find((one) => one.type === type);
      return `${found?.status} ${found?.reason} ${found?.message}`;
    },
    owner: (isIt) =>
      until(async () => {
        const { owner, fence } = await status();
        return owner && fence === owner.generation && isIt(owner) ? owner : null;
      }),
    create: async (spec = {}) => {
      // An API server that is away while its data are exchanged must not cost an ownership: that would be another story.
      const lease = { durationSeconds: 120, renewIntervalSeconds: 1, requestTimeoutSeconds: 2, marginSeconds: 1 };
      await jobServer.createJob(JOB, { lease, ...spec });
    },
    stop: async () => {
      await host.stop();
      await controller.stop();
      await jobServer.stop();
    },
  };
  open.push(cluster);
  return cluster;
}

const write = ({ host }: ClusterOfTest, { uid, generation }: Owner): Promise<pg.Client> =>
  until(async () => {
    const client = await host.connect(uid);
    await client.query("INSERT INTO written VALUES ($1)", [generation]);
    return client;
  });

const generations = async (sql: string): Promise<number[]> =>
  (await admin.query<{ generation: string }>(sql)).rows.map(({ generation }) => Number(generation));

test("etcd comes back as it was two generations ago: the next owner is above what the database knows, by itself (A15)", async () => {
  const cluster = await aCluster();
  await cluster.create();
  const first = await cluster.owner(({ generation }) => generation === 1);
  await write(cluster, first);
  await cluster.server.backUp();
  await cluster.host.end(first.uid, "Failed");
  const second = await cluster.owner(({ generation }) => generation === 2);
  await write(cluster, second);
  await cluster.host.end(second.uid, "Failed");
  const third = await cluster.owner(({ generation }) => generation === 3);
  const client = await write(cluster, third);
  const startedMs = systemClock.monoMs();
  await cluster.server.restore();
  const next = await cluster.owner(({ generation }) => generation > 3);
  await write(cluster, next);
  console.info(
    `etcd restored: generation ${next.generation} writes after ${Math.round(systemClock.monoMs() - startedMs)} ms`,
  );
  await expect(client.query("INSERT INTO written VALUES (3)")).rejects.toThrow();
  expect(await generations("SELECT generation FROM written ORDER BY ctid")).toEqual([1, 2, 3, next.generation]);
  // INV-8: no number was accepted for two pods, INV-7: no pod for two numbers.
  const claims = await admin.query("SELECT count(*), count(DISTINCT holder) AS holders FROM fence.claim");
  expect(claims.rows[0].count).toBe(claims.rows[0].holders);
});

test("a FencedJob that is deleted and made anew goes on above the fence, which nobody has deleted (INV-1, D16)", async () => {
  const cluster = await aCluster();
  await cluster.create({ backoffLimit: 0 });
  await write(cluster, await cluster.owner(({ generation }) => generation === 1));
  await cluster.api.delete(RESOURCES.fencedJobs, JOB);
  await until(() => cluster.api.get(RESOURCES.fencedJobs, JOB).then(() => false, isNotFound));
  const closed = await admin.query(
    "SELECT generation, closed_at IS NOT NULL AS closed FROM fence.claim ORDER BY generation DESC LIMIT 1",
  );
  expect(closed.rows).toMatchObject([{ closed: true }]);
  // The Lease goes with the garbage collector, which is not here.
  await cluster.api.delete(RESOURCES.leases, JOB);
  await cluster.create({ backoffLimit: 0 });
  const anew = await cluster.owner(({ generation }) => generation > Number(closed.rows[0].generation));
  await write(cluster, anew);
  expect((await cluster.status()).failures).toBe(0);
});

test("two clusters with one fence: the second says so and raises nothing, until it is told to; then the first says so (no silent duel)", async () => {
  const [one, other] = [await aCluster(), await aCluster()];
  await one.create();
  const first = await one.owner(({ generation }) => generation === 1);
  const client = await write(one, first);
  await other.create();
  const told = await until(async () => {
    const text = await other.condition("ForeignIssuer");
    return text.startsWith("True RaisedElsewhere") ? text : null;
  });
  await client.query("INSERT INTO written VALUES (1)");
  const command = /kubectl patch .* -p '(.*)'/.exec(told)?.[1] ?? "";
  await other.api.patch(RESOURCES.fencedJobs, JOB, JSON.parse(command));
  const second = await other.owner(({ generation }) => generation > 1);
  await write(other, second);
  await expect(client.query("INSERT INTO written VALUES (1)")).rejects.toThrow();
  await until(async () => (await one.condition("ForeignIssuer")).startsWith("True RaisedElsewhere"));
  expect(await generations("SELECT generation FROM fence.job")).toEqual([second.generation]);
});
