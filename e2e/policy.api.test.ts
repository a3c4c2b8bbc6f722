/**
 * The chart's ValidatingAdmissionPolicy on a real API server, tried with tokens that are bound to pods (INV-6). The account
 * may do everything with Leases here, so that each refusal is the policy's and not that of the narrow role.
 */
import { join } from "node:path";
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { KubeApi, RESOURCES } from "../controller/kube/api.ts";
import { ApiError, isForbidden } from "../controller/kube/errors.ts";
import type { KubeObject, RawObject } from "../controller/kube/objects.ts";
import { JOB_LABEL } from "../controller/snapshot.ts";
import { LeaseClient } from "../lease/client.ts";
import { Holder } from "../lease/holder.ts";
import { Permit } from "../lease/permit.ts";
import { grantedLease, type RawLease, readLease, releasedLease, renewedLease } from "../lease/record.ts";
import { systemClock } from "../platform/clock.ts";
import { type HttpClient, httpClient } from "../platform/http.ts";
import { silentLogger } from "../platform/log.ts";
import { systemRandom } from "../platform/random.ts";
import { startApiServer, type TestApiServer } from "../testing/apiserver.ts";
import { until } from "../testing/until.ts";
import { build, programPath } from "./cluster/build.ts";
import { run } from "./cluster/command.ts";
import { checkout } from "./cluster/paths.ts";

const NAMESPACE = "billing";
const SYSTEM = "fencedjob-system";
const JOB = "run";
const BUILD_MS_MAX = 10 * 60_000;
const CALL_MS = 10_000;

type Lease = RawLease & KubeObject;

let server: TestApiServer;
const clients: HttpClient[] = [];
/** As which pod: its UID, and the API with its token. */
interface Sender {
  readonly uid: string;
  readonly client: HttpClient;
  readonly api: KubeApi;
}
let admin: KubeApi;
let holder: Sender;
let other: Sender;

beforeAll(async () => {
  await build(["helm"], (line) => console.error(line));
  server = await startApiServer();
  const { adminCertPem: cert, adminKeyPem: key, caPem: ca } = server;
  admin = apiWith(async () => ({ tls: { ca, cert, key } })).api;
  for (const namespace of [NAMESPACE, SYSTEM]) await server.createNamespace(namespace);
  await server.kubectl(["apply", "-f", "-"], await render());
  await server.kubectl(["apply", "-f", "-"], JSON.stringify({ apiVersion: "v1", kind: "List", items: wideRights }));
  holder = await aPod(NAMESPACE, "default", "run-1");
  other = await aPod(NAMESPACE, "default", "run-2");
  // The API server takes a policy into use a moment after it was stored.
  await putLease(JOB);
  await until(() =>
    other.api
      .delete(RESOURCES.leases, { namespace: NAMESPACE, name: JOB }, { dryRun: true })
      // By the policy: the account's right may come a moment later, too.
      .catch((error) => isForbidden(error) && /may neither create nor delete/.test(error.message)),
  );
}, BUILD_MS_MAX);

afterAll(async () => {
  for (const client of clients) client.close();
  await server?.stop();
});

beforeEach(() => putLease(JOB));

const wideRights = [
  {
    apiVersion: "rbac.authorization.k8s.io/v1",
    kind: "ClusterRole",
    metadata: { name: "all-leases" },
    rules: [{ apiGroups: ["coordination.k8s.io"], resources: ["leases"], verbs: ["*"] }],
  },
  {
    apiVersion: "rbac.authorization.k8s.io/v1",
    kind: "ClusterRoleBinding",
    metadata: { name: "all-leases" },
    roleRef: { apiGroup: "rbac.authorization.k8s.io", kind: "ClusterRole", name: "all-leases" },
    subjects: [NAMESPACE, SYSTEM].map((namespace) => ({ kind: "ServiceAccount", name: "default", namespace })),
  },
];

const render = (...args: string[]): Promise<string> =>
  run([programPath("helm"), "template", "fencedjob", join(checkout, "charts/fencedjob"), "-n", SYSTEM, ...args]);

function apiWith(credentials: NonNullable<Parameters<typeof httpClient>[0]["credentials"]>): Omit<Sender, "uid"> {
  const client = httpClient({ baseUrl: server.url, clock: systemClock, credentials });
  clients.push(client);
  return { client, api: new KubeApi(client, systemClock, "fencedjob-test") };
}

async function aPod(namespace: string, account: string, name: string): Promise<Sender> {
  const spec = { serviceAccountName: account, containers: [{ name: "main", image: "x" }] };
  const { metadata } = await admin.create(RESOURCES.pods, { metadata: { namespace, name }, spec } as RawObject);
  const token = await server.podToken(namespace, account, name);
  const headers = { authorization: `Bearer ${token}` };
  return { uid: metadata.uid ?? "", ...apiWith(async () => ({ headers, tls: { ca: server.caPem } })) };
}

/** The Lease as the controller grants it to `holder`, made anew. */
async function putLease(name: string, labels = { [JOB_LABEL]: name }): Promise<Lease> {
  const key = { namespace: NAMESPACE, name };
  await admin.delete(RESOURCES.leases, key).catch(() => {});
  const job = { apiVersion: "fencedjob.dev/v1alpha1", kind: "FencedJob", name, uid: "job-uid" };
  const grant = {
    holder: holder.uid,
    generation: 7,
    name,
    namespace: NAMESPACE,
    holderPod: "run-1",
    durationMs: 10_000,
  };
  return admin.create(
    RESOURCES.leases,
    grantedLease(null, { ...grant, labels, ownerReferences: [job] }, systemClock.wall()) as Lease,
  );
}

const stored = (name = JOB): Promise<Lease> => admin.get<Lease>(RESOURCES.leases, { namespace: NAMESPACE, name });

/** What the API server answers to a Lease changed like this. */
async function refusal(sender: Sender, change: (lease: Lease) => object): Promise<string> {
  const lease = await stored();
  const answer = await sender.api.update(RESOURCES.leases, change(lease) as Lease).then(
    () => null,
    (error: unknown) => error,
  );
  if (!(answer instanceof ApiError)) throw new Error(`not refused: ${answer}`);
  expect(isForbidden(answer)).toBe(true);
  expect((await stored()).metadata.resourceVersion).toBe(lease.metadata.resourceVersion);
  return answer.message;
}

const withSpec = (spec: object) => (lease: Lease) => ({ ...lease, spec: { ...lease.spec, ...spec } });
const withMeta = (metadata: object) => (lease: Lease) => ({ ...lease, metadata: { ...lease.metadata, ...metadata } });
const withAnnotations = (annotations: Record<string, string>) => (lease: Lease) =>
  withMeta({ annotations: { ...lease.metadata.annotations, ...annotations } })(lease);
const without = (annotation: string) => (lease: Lease) => {
  const { [annotation]: _taken, ...annotations } = lease.metadata.annotations ?? {};
  return withMeta({ annotations })(lease);
};

describe("INV-6: what the holder may do, the API server lets it do", () => {
  test("the sidecar's own renewal and release, through its client, and nothing after the release", async () => {
    const client = new LeaseClient(holder.client, { namespace: NAMESPACE, name: JOB });
    const me = { holder: holder.uid, generation: 7 };
    let lease: RawLease = await stored();
    for (const report of ["{}", '{"generation":7}']) {
      const answer = await client.replace(renewedLease(lease, me, systemClock.wall(), report), CALL_MS);
      if (answer.kind !== "ok") throw new Error(JSON.stringify(answer));
      expect(readLease(answer.lease)).toMatchObject({ ...me, report });
      lease = answer.lease;
    }
    const released = await client.replace(releasedLease(lease, me, systemClock.wall(), "{}"), CALL_MS);
    if (released.kind !== "ok") throw new Error(JSON.stringify(released));
    expect(readLease(released.lease)).toMatchObject({ holder: null, generation: 7 });
    expect(await refusal(holder, withSpec({ holderIdentity: holder.uid }))).toMatch(
      /pod run-1 does not hold Lease billing\/run, which nobody holds now \(generation 7\)/,
    );
  });

  test("a Lease without our label is nobody's business", async () => {
    await putLease("theirs", {} as never);
    await other.api.patch(
      RESOURCES.leases,
      { namespace: NAMESPACE, name: "theirs" },
      { spec: { holderIdentity: "me" } },
    );
    expect(readLease(await stored("theirs")).holder).toBe("me");
  });
});

describe("INV-6: everything else of a pod is refused by the API server itself", () => {
  test("another pod of the same account may not renew, and is told who holds it", async () => {
    expect(await refusal(other, withSpec({ renewTime: "2036-01-01T00:00:00.000000Z" }))).toMatch(
      /pod run-2 does not hold Lease billing\/run, which run-1 holds \(generation 7\)\. Its ownership is over, or never was/,
    );
  });

  test.each<[string, (lease: Lease) => object, RegExp]>([
    ["a hand-over", (lease) => withSpec({ holderIdentity: other.uid })(lease), /not hand it to another/],
    ["another generation", withAnnotations({ "fencedjob.dev/generation": "8" }), /may not change the generation/],
    ["no generation", without("fencedjob.dev/generation"), /may not change the generation/],
    ["a longer duration", withSpec({ leaseDurationSeconds: 600 }), /nothing else \(duration/],
    ["no duration", withSpec({ leaseDurationSeconds: undefined }), /nothing else/],
    ["another time of acquisition", withSpec({ acquireTime: "2026-01-01T00:00:00.000000Z" }), /nothing else/],
    ["more transitions", withSpec({ leaseTransitions: 9 }), /nothing else/],
    ["no spec", ({ metadata }) => ({ metadata: { ...metadata } }), /nothing else/],
    ["another pod's name", withAnnotations({ "fencedjob.dev/holder-pod": "run-9" }), /nothing else/],
    ["no pod's name", without("fencedjob.dev/holder-pod"), /nothing else/],
    ["an annotation more", withAnnotations({ more: "" }), /nothing else/],
    ["the label taken away, which does not leave the policy", withMeta({ labels: {} }), /nothing else/],
    ["another label", withMeta({ labels: { [JOB_LABEL]: "other" } }), /nothing else/],
    ["no owner", withMeta({ ownerReferences: [] }), /nothing else/],
    ["a finalizer", withMeta({ finalizers: ["example.com/mine"] }), /nothing else/],
  ])("by the holder: %s", async (_what, change, message) => {
    expect(await refusal(holder, change)).toMatch(message);
  });

  test("the label put onto a Lease of somebody else", async () => {
    await putLease("theirs", {} as never);
    const patch = { metadata: { labels: { [JOB_LABEL]: "theirs" } } };
    const key = { namespace: NAMESPACE, name: "theirs" };
    await expect(other.api.patch(RESOURCES.leases, key, patch)).rejects.toThrow(/pod run-2 does not hold/);
  });

  test("a patch, as an update; and creating and deleting, one or all", async () => {
    const key = { namespace: NAMESPACE, name: JOB };
    const patch = { metadata: { annotations: { "fencedjob.dev/generation": "8" } } };
    await expect(holder.api.patch(RESOURCES.leases, key, patch)).rejects.toThrow(/may not change the generation/);
    await expect(
      holder.api.apply(RESOURCES.leases, { metadata: { ...key, ...patch.metadata } }, { force: true }),
    ).rejects.toThrow(/may not change the generation/);
    const whose = /pod run-1 may neither create nor delete Lease billing\/run.*delete or suspend the FencedJob/;
    await expect(holder.api.delete(RESOURCES.leases, key)).rejects.toThrow(whose);
    const answer = await holder.client.request({
      method: "DELETE",
      path: `/apis/coordination.k8s.io/v1/namespaces/${NAMESPACE}/leases?labelSelector=${JOB_LABEL}`,
      timeoutMs: CALL_MS,
    });
    expect([answer.status, (answer.body as { message: string }).message]).toEqual([403, expect.stringMatching(whose)]);
    const lease = await stored();
    await admin.delete(RESOURCES.leases, key);
    const { uid: _uid, resourceVersion: _version, ...metadata } = lease.metadata;
    await expect(holder.api.create(RESOURCES.leases, { ...lease, metadata })).rejects.toThrow(whose);
  });
});

test("a sidecar whose renewals are refused logs the policy's words at each, and has no permit (INV-5)", async () => {
  // It believes to be the pod that the Lease names, and has the token of another.
  const told = Promise.withResolvers<string>();
  const warn = (message: string, fields?: object): void => told.resolve(`${message} ${JSON.stringify(fields)}`);
  const permit = new Permit();
  const impostor = new Holder({
    api: new LeaseClient(other.client, { namespace: NAMESPACE, name: JOB }),
    clock: systemClock,
    random: systemRandom,
    log: { ...silentLogger, warn },
    timing: { durationMs: 10_000, renewIntervalMs: 3_000, requestTimeoutMs: 2_000, marginMs: 1_000 },
    permit,
    holder: holder.uid,
    report: () => "{}",
  });
  const end = new AbortController();
  const held = impostor.hold(await impostor.waitForGrant(end.signal), end.signal);
  expect(await told.promise).toMatch(
    /the API server refused a renewal.*"status":403.*pod run-2 does not hold Lease billing\/run, which run-1 holds/,
  );
  permit.open();
  expect(permit.state(systemClock.monoMs())).toBe("unconfirmed");
  end.abort();
  expect(await held).toBeNull();
});

describe("who is not caught", () => {
  const grantOver = async (sender: KubeApi): Promise<Lease> =>
    sender.update(
      RESOURCES.leases,
      withSpec({ holderIdentity: other.uid })(
        withAnnotations({ "fencedjob.dev/generation": "8" })(await stored()) as Lease,
      ),
    );

  test("the controller's own pod, whose token names a pod, too, grants; another pod of its namespace does not", async () => {
    const controller = await aPod(SYSTEM, "fencedjob", "controller");
    expect(readLease(await grantOver(controller.api))).toMatchObject({ holder: other.uid, generation: 8 });
    await controller.api
      .delete(RESOURCES.leases, { namespace: NAMESPACE, name: JOB }, { dryRun: true })
      .catch((error) => {
        // Its role, and not the policy, keeps it from deleting.
        expect(error.message).toMatch(/cannot delete resource "leases"/);
      });
    await putLease(JOB);
    await expect(grantOver((await aPod(SYSTEM, "default", "neighbour")).api)).rejects.toThrow(/does not hold/);
  });

  test("a person", async () => {
    expect(readLease(await grantOver(admin))).toMatchObject({ holder: other.uid, generation: 8 });
  });

  test("whom the chart's values name", async () => {
    // The last test that the API server is asked in: the policy stays like this.
    const exempt = await render("--set", `policy.exemptUsers={system:serviceaccount:${SYSTEM}:default}`);
    await server.kubectl(["apply", "-f", "-"], exempt);
    const { api } = await aPod(SYSTEM, "default", "backup");
    await until(() => grantOver(api));
  });
});

describe("the chart", () => {
  const policies = async (...args: string[]): Promise<number> =>
    (await render(...args)).match(/^kind: ValidatingAdmissionPolicy(Binding)?$/gm)?.length ?? 0;

  test("has the policy from Kubernetes 1.30 on, unless it is switched off", async () => {
    expect(await policies()).toBe(2);
    expect(await policies("--kube-version", "1.30.0-eks-1")).toBe(2);
    expect(await policies("--kube-version", "1.29.9")).toBe(0);
    expect(await policies("--set", "policy.enabled=false")).toBe(0);
  });

  test("of one namespace holds the policy to that namespace, where another release's controller does not work", async () => {
    expect(await render("--set", "watchNamespace=billing")).toMatch(
      /namespaceSelector:\s+matchLabels: \{ kubernetes\.io\/metadata\.name: "billing" \}/,
    );
  });

  test("is that of the controller alone where a list of further users is taken back", async () => {
    expect(await render("--set", "policy.exemptUsers=null")).toContain(
      `username in ['system:serviceaccount:${SYSTEM}:fencedjob']`,
    );
  });

  test("takes no name that would end the expression it stands in", async () => {
    await expect(render("--set", "policy.exemptUsers={a'b}")).rejects.toThrow(/exemptUsers/);
  });
});
