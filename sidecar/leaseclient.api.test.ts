/** The sidecar's Lease client against a real API server, with the rights that a pod of a FencedJob has. */
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import type { LeaseClient, LeaseNews } from "../lease/client.ts";
import { systemClock } from "../platform/clock.ts";
import { startApiServer, type TestApiServer } from "../testing/apiserver.ts";
import { openLeaseClient } from "./leaseclient.ts";

const NAMESPACE = "billing";
let api: TestApiServer;
let directory: string;
const clients: LeaseClient[] = [];

const rights = {
  apiVersion: "v1",
  kind: "List",
  items: [
    { apiVersion: "v1", kind: "ServiceAccount", metadata: { name: "invoice-run" } },
    {
      apiVersion: "rbac.authorization.k8s.io/v1",
      kind: "Role",
      metadata: { name: "invoice-run" },
      rules: [
        {
          apiGroups: ["coordination.k8s.io"],
          resources: ["leases"],
          resourceNames: ["invoice-run"],
          verbs: ["get", "update", "watch"],
        },
      ],
    },
    {
      apiVersion: "rbac.authorization.k8s.io/v1",
      kind: "RoleBinding",
      metadata: { name: "invoice-run" },
      roleRef: { apiGroup: "rbac.authorization.k8s.io", kind: "Role", name: "invoice-run" },
      subjects: [{ kind: "ServiceAccount", name: "invoice-run" }],
    },
    {
      apiVersion: "v1",
      kind: "Pod",
      metadata: { name: "invoice-run-1" },
      spec: { serviceAccountName: "invoice-run", containers: [{ name: "main", image: "x" }] },
    },
  ],
};

beforeAll(async () => {
  api = await startApiServer();
  await api.createNamespace(NAMESPACE);
  await api.kubectl(["-n", NAMESPACE, "create", "-f", "-"], JSON.stringify(rights));
  directory = await mkdtemp(path.join(tmpdir(), "fencedjob-lease-"));
  await writeFile(path.join(directory, "token"), await api.podToken(NAMESPACE, "invoice-run", "invoice-run-1"));
  await writeFile(path.join(directory, "ca.crt"), api.caPem);
});

afterAll(async () => {
  for (const client of clients) client.close();
  await api?.stop();
  if (directory) await rm(directory, { recursive: true });
});

function clientFor(name: string): LeaseClient {
  const client = openLeaseClient({
    baseUrl: api.url,
    tokenPath: path.join(directory, "token"),
    caPath: path.join(directory, "ca.crt"),
    namespace: NAMESPACE,
    name,
    clock: systemClock,
  });
  clients.push(client);
  return client;
}

const leaseNamed = (name: string) =>
  api.kubectl(
    ["-n", NAMESPACE, "create", "-f", "-"],
    JSON.stringify({ apiVersion: "coordination.k8s.io/v1", kind: "Lease", metadata: { name }, spec: {} }),
  );

test("A14: a token bound to a pod watches its own Lease before that exists, renews it, and sees everything it does", async () => {
  const client = clientFor("invoice-run");
  const stop = new AbortController();
  const news: LeaseNews[] = [];
  const watching = (async () => {
    for await (const one of client.watch(undefined, stop.signal)) news.push(one);
  })();
  expect(await client.get(5000)).toEqual({ kind: "notFound" });
  await leaseNamed("invoice-run");
  const kinds = () => news.map(({ kind }) => kind).filter((kind) => kind !== "quiet");
  // Else a watch that opens late begins with what it is renewed to.
  await expect.poll(kinds).toEqual(["lease"]);
  const read = await client.get(5000);
  if (read.kind !== "ok") throw new Error(JSON.stringify(read));

  const renewed = (renewTime: string) => ({ ...read.lease, spec: { holderIdentity: "uid", renewTime } });
  const six = await client.replace(renewed("2026-11-29T13:02:11.123000Z"), 5000);
  expect(six).toMatchObject({ kind: "ok", lease: { spec: { renewTime: "2026-11-29T13:02:11.123000Z" } } });
  if (six.kind !== "ok") throw new Error("unreachable");
  const three = { ...six.lease, spec: { ...six.lease.spec, renewTime: "2026-11-29T13:02:14.123Z" } };
  expect(await client.replace(three, 5000)).toMatchObject({
    kind: "refused",
    status: 400,
    message: /renewTime|parsing time/,
  });

  expect(await client.replace(renewed("2026-11-29T13:02:17.123000Z"), 5000)).toEqual({ kind: "conflict" });
  await api.kubectl(["-n", NAMESPACE, "delete", "lease", "invoice-run"]);
  await expect.poll(kinds).toEqual(["lease", "lease", "deleted"]);
  stop.abort();
  await watching;
});

test("INV-6: a renewal never creates a Lease that was deleted, although the API server lets a PUT create Leases", async () => {
  await leaseNamed("invoice-run");
  const client = clientFor("invoice-run");
  const read = await client.get(5000);
  if (read.kind !== "ok") throw new Error(JSON.stringify(read));
  await api.kubectl(["-n", NAMESPACE, "delete", "lease", "invoice-run"]);
  expect(await client.replace(read.lease, 5000)).toEqual({ kind: "conflict" });
  expect(await client.get(5000)).toEqual({ kind: "notFound" });
});

test("the same token may neither read, renew nor watch another job's Lease", async () => {
  await leaseNamed("other-run");
  const client = clientFor("other-run");
  expect(await client.get(5000)).toMatchObject({ kind: "refused", status: 403 });
  const other = { metadata: { name: "other-run", namespace: NAMESPACE, uid: "u", resourceVersion: "1" }, spec: {} };
  expect(await client.replace(other, 5000)).toMatchObject({ kind: "refused", status: 403 });
  const news: LeaseNews[] = [];
  for await (const one of client.watch(undefined, AbortSignal.timeout(60_000))) news.push(one);
  expect(news).toMatchObject([{ kind: "ended", gone: false, message: /^403: / }]);
});
