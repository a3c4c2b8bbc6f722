/** What a real API server and the controller let in, what they refuse and how it is told, and what a job's pods may do. */
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { type AddressInfo, createServer } from "node:net";
import { describe, expect, onTestFinished, test } from "vitest";
import { ControllerScene } from "../testing/controllerscene.ts";
import { inScene } from "../testing/inscene.ts";
import { CRD_FILE } from "../testing/jobserver.ts";
import { until } from "../testing/until.ts";
import { type KubeApi, RESOURCES } from "./kube/api.ts";
import type { RawObject } from "./kube/objects.ts";

let scene: ControllerScene;
let api: KubeApi;

inScene(ControllerScene.start, (started) => {
  scene = started;
  ({ api } = scene.jobs);
});

describe("the resource", () => {
  test("the CRD is small enough to be applied twice by client-side apply (D05)", async () => {
    expect(readFileSync(CRD_FILE).length).toBeLessThan(64 * 1024);
    expect(await scene.jobs.server.kubectl(["apply", "-f", CRD_FILE])).toMatch(/unchanged/);
  });

  test.each([
    [
      "timing that cannot be kept",
      { lease: { durationSeconds: 5, renewIntervalSeconds: 3, requestTimeoutSeconds: 2 } },
      /must be below durationSeconds/,
    ],
    ["parts of seconds", { lease: { durationSeconds: 10.5 } }, /durationSeconds/],
    [
      "two databases on one port",
      {
        databases: [
          { name: "a", secretName: "x" },
          { name: "b", secretName: "y" },
        ],
      },
      /own name and its own port/,
    ],
    ["no database", { databases: [] }, /should have at least 1 item/],
  ])("%s cannot be written", async (_what, spec, message) => {
    await expect(scene.create("bad", spec)).rejects.toThrow(message);
  });

  test("a name that would overflow its pods' names is refused at admission (E11), and a fence name cannot be changed (INV-8)", async () => {
    await expect(scene.create("n".repeat(53))).rejects.toThrow(/52 characters/);
    await scene.create("kept", { fenceName: "a/b" });
    const change = { spec: { fenceName: "c/d" } };
    await expect(api.patch(RESOURCES.fencedJobs, scene.at("kept"), change)).rejects.toThrow(
      /fenceName cannot be changed/,
    );
  });

  test("defaults come from the schema, and unknown fields of the pod template survive (D03)", async () => {
    const template = {
      metadata: { labels: { team: "a" } },
      spec: { containers: [{ name: "app", someFutureField: 1 }] },
    };
    const stored = await scene.create("defaults", { lease: {}, template });
    expect(stored.spec).toMatchObject({ lease: { durationSeconds: 10 }, drainSeconds: 2, template });
  });
});

describe("what is wrong is said, and stops nobody else", () => {
  test.each([
    [
      "a pod that the API server refuses",
      { spec: { containers: [{ name: "Not A Name", image: "x" }] } },
      "InvalidTemplate",
    ],
    ["a misspelt field", { spec: { containers: [{ name: "app", image: "x", comand: ["x"] }] } }, "InvalidTemplate"],
    [
      "an environment value that is no text (D04)",
      { spec: { containers: [{ name: "app", image: "x", env: [{ name: "A", value: 1 }] }] } },
      "InvalidTemplate",
    ],
    ["hostNetwork", { spec: { hostNetwork: true, containers: [{ name: "app", image: "x" }] } }, "HostNetwork"],
    [
      "a container with the sidecar's name",
      { spec: { containers: [{ name: "fencedjob", image: "x" }] } },
      "ReservedName",
    ],
  ])("%s", async (_what, template, reason) => {
    await scene.controller();
    await scene.create("wrong", { template });
    await scene.create("right");
    await until(async () => (await scene.condition("wrong", "Admitted"))?.reason === reason);
    await scene.podIs("right-1", "Pending");
    expect(await scene.owned("right", "right-1")).toBe(1);
    const words = await until(async () => {
      const text = await scene.described("wrong");
      return text.includes(`Warning  ${reason}`) ? text : null;
    });
    expect(words).toContain(reason);
    expect((await scene.status("wrong")).attempt).toBe(0);
  });

  test("a webhook that never answers holds up the jobs whose pods it is asked for, and no others", async () => {
    const hole = createServer().listen(0, "127.0.0.1");
    onTestFinished(() => void hole.close());
    await once(hole, "listening");
    const { port } = hole.address() as AddressInfo;
    const webhook = {
      name: "silent.example.com",
      clientConfig: { url: `https://127.0.0.1:${port}` },
      rules: [{ apiGroups: [""], apiVersions: ["v1"], operations: ["CREATE"], resources: ["pods"] }],
      objectSelector: { matchLabels: { asks: "silent" } },
      admissionReviewVersions: ["v1"],
      sideEffects: "None",
      timeoutSeconds: 30,
    };
    const configuration = {
      apiVersion: "admissionregistration.k8s.io/v1",
      kind: "ValidatingWebhookConfiguration",
      metadata: { name: "silent" },
      webhooks: [webhook],
    };
    await scene.jobs.server.kubectl(["apply", "-f", "-"], JSON.stringify(configuration));
    onTestFinished(async () => {
      await scene.jobs.server.kubectl(["delete", "validatingwebhookconfiguration", "silent"]);
    });
    const hanging = Array.from({ length: 12 }, (_, i) => `hangs-${i}`);
    const template = { metadata: { labels: { asks: "silent" } }, spec: { containers: [{ name: "app", image: "x" }] } };
    for (const name of hanging) await scene.create(name, { template });
    await scene.create("right");
    await scene.controller();
    await scene.podIs("right-1", "Pending");
    expect(await scene.owned("right", "right-1")).toBe(1);
    // One worker after the other would have waited for each of them.
    const told = await Promise.all(hanging.map((name) => scene.condition(name, "Admitted")));
    expect(told).toContain(undefined);
    // Each is told of in the end.
    await until(async () => (await scene.condition("hangs-0", "Admitted"))?.reason === "AdmissionUnavailable");
  });

  test("a template that is mended is taken up", async () => {
    await scene.controller();
    await scene.create("mended", {
      template: { spec: { hostNetwork: true, containers: [{ name: "app", image: "x" }] } },
    });
    await until(async () => (await scene.condition("mended", "Admitted"))?.status === "False");
    await api.patch(RESOURCES.fencedJobs, scene.at("mended"), { spec: { template: { spec: { hostNetwork: null } } } });
    await scene.podIs("mended-1", "Pending");
    expect((await scene.condition("mended", "Admitted"))?.status).toBe("True");
  });
});

describe("rights of a job's pods (D12)", () => {
  test("the account may get, watch and update its own Lease by name, and nothing else", async () => {
    await scene.controller();
    await scene.create("mine");
    await scene.podIs("mine-1", "Pending");
    const as = `--as=system:serviceaccount:${scene.namespace}:mine-fencedjob`;
    const can = async (...what: string[]): Promise<string> =>
      (
        await scene.jobs.server
          .kubectl(["auth", "can-i", "-n", scene.namespace, as, ...what])
          .catch((error) => String(error))
      ).includes("yes")
        ? "yes"
        : "no";
    expect(await can("update", "leases/mine")).toBe("yes");
    expect(await can("watch", "leases/mine")).toBe("yes");
    for (const no of [
      ["update", "leases/other"],
      ["list", "leases"],
      ["create", "leases"],
      ["delete", "leases/mine"],
      ["get", "secrets/ledger-db"],
      ["get", "pods"],
      ["update", "fencedjobs/mine"],
    ]) {
      expect([...no, await can(...no)]).toEqual([...no, "no"]);
    }
    const pod = await api.get<RawObject>(RESOURCES.pods, scene.at("mine-1"));
    expect(pod.spec).toMatchObject({ automountServiceAccountToken: false, serviceAccountName: "mine-fencedjob" });
  });
});
