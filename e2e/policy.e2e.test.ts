/** INV-6 on a node: what a pod can do to its job's Lease with the token that the kubelet has given to its sidecar. */
import { afterAll, beforeAll, expect, test } from "vitest";
import { RESOURCES } from "../controller/kube/api.ts";
import type { KubeObject } from "../controller/kube/objects.ts";
import { type RawLease, readLease } from "../lease/record.ts";
import { openScene, type Scene, SETUP_MS_MAX } from "./scene.ts";
import { type Ledger, openLedger } from "./takeover/ledger.ts";
import { Stage } from "./takeover/stage.ts";

const NAMESPACE = "policy";
const JOB = "guarded";
const NO_WAY = "only on the local node can pods reach a database of this machine";
const TEST_MS_MAX = 10 * 60_000;

let scene: Scene;
let ledger: Ledger | undefined;

beforeAll(async () => {
  scene = await openScene(NAMESPACE);
  const { hostAddress } = scene.cluster;
  if (hostAddress !== undefined) ledger = await openLedger(hostAddress);
}, SETUP_MS_MAX);

afterAll(async () => {
  await ledger?.close();
  await scene?.close();
});

/** In the sidecar's container: reads the Lease, changes it by `change`, a function's source, and tells the server's answer. */
const replaceLease = (change: string): string => `
  const { readFileSync } = require("fs");
  const read = (file) => readFileSync("/var/run/fencedjob/" + file, "utf8");
  const call = (method, body) => new Promise((resolve, reject) => {
    const request = require("https").request({
      host: process.env.KUBERNETES_SERVICE_HOST,
      port: process.env.KUBERNETES_SERVICE_PORT,
      path: "/apis/coordination.k8s.io/v1/namespaces/${NAMESPACE}/leases/${JOB}",
      method,
      ca: read("ca.crt"),
      headers: { authorization: "Bearer " + read("token"), "content-type": "application/json" },
    }, async (response) => {
      let text = "";
      for await (const piece of response) text += piece;
      resolve({ status: response.statusCode, body: JSON.parse(text) });
    });
    request.on("error", reject);
    request.end(body && JSON.stringify(body));
  });
  (async () => {
    // The holder renews meanwhile: a conflict is not the answer that is asked for.
    for (;;) {
      const { body: lease } = await call("GET");
      (${change})(lease);
      const { status, body } = await call("PUT", lease);
      if (status !== 409) return console.log(JSON.stringify({ status, message: body.message }));
    }
  })();`;

async function answer(pod: string, change: string): Promise<{ status: number; message?: string }> {
  const command = [
    "exec",
    "-n",
    NAMESPACE,
    pod,
    "-c",
    "fencedjob",
    "--",
    "/nodejs/bin/node",
    "-e",
    replaceLease(change),
  ];
  return JSON.parse(await scene.cluster.kubectl(command));
}

test("a standby may not touch the Lease; the owner may renew it, not change its generation or hand it over", {
  timeout: TEST_MS_MAX,
}, async ({ skip }) => {
  if (!ledger) return skip(NO_WAY);
  const stage = new Stage(scene, ledger);
  await stage.putSecret();
  await stage.create({ name: JOB, spec: { standbys: { count: 1 } } });
  const owner = await stage.owner(JOB);
  await stage.standbyRuns(JOB, "sidecar");
  const standby = (await scene.status(JOB)).candidates[0]?.pod ?? "";
  const steal = `(lease) => { lease.spec.holderIdentity = process.env.POD_UID; }`;
  expect(await answer(standby, steal)).toEqual({
    status: 403,
    message: expect.stringMatching(
      new RegExp(`pod ${standby} does not hold Lease ${NAMESPACE}/${JOB}, which ${owner.pod} holds \\(generation 1\\)`),
    ),
  });
  const raise = `(lease) => { lease.metadata.annotations["fencedjob.dev/generation"] = "2"; }`;
  expect(await answer(owner.pod, raise)).toEqual({
    status: 403,
    message: expect.stringContaining("may not change the generation"),
  });
  const handOver = `(lease) => { lease.spec.holderIdentity = "somebody"; }`;
  expect(await answer(owner.pod, handOver)).toMatchObject({ status: 403 });
  expect(await answer(owner.pod, `() => {}`)).toMatchObject({ status: 200 });
  // It was nobody's loss.
  const lease = await scene.api.get<RawLease & KubeObject>(RESOURCES.leases, { namespace: NAMESPACE, name: JOB });
  expect(readLease(lease)).toMatchObject({ holder: owner.uid, generation: 1 });
  expect((await scene.status(JOB)).owner).toMatchObject({ uid: owner.uid, generation: 1 });
});
