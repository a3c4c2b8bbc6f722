import { existsSync } from "node:fs";
import { afterAll, beforeAll, expect, test } from "vitest";
import { startApiServer, type TestApiServer } from "./apiserver.ts";

let api: TestApiServer;
beforeAll(async () => {
  api = await startApiServer();
});
afterAll(() => api?.stop());

const lease = (name: string) =>
  JSON.stringify({
    apiVersion: "coordination.k8s.io/v1",
    kind: "Lease",
    metadata: { name },
    spec: { holderIdentity: "a" },
  });

test("a real API server answers, and keeps what it was told when it is restarted", async () => {
  await api.kubectl(["create", "-f", "-"], lease("kept"));
  await api.stopApi();
  await expect(api.kubectl(["get", "lease", "kept", "--request-timeout=2s"])).rejects.toThrow(/refused/);
  await api.startApi();
  expect(await api.kubectl(["get", "lease", "kept", "-o", "jsonpath={.spec.holderIdentity}"])).toBe("a");
});

test("a pod is admitted in a namespace made for tests", async () => {
  await api.createNamespace("billing");
  const pod = {
    apiVersion: "v1",
    kind: "Pod",
    metadata: { name: "p" },
    spec: { containers: [{ name: "c", image: "c" }] },
  };
  await api.kubectl(["create", "-n", "billing", "-f", "-"], JSON.stringify(pod));
  expect(await api.kubectl(["get", "pod", "p", "-n", "billing", "-o", "jsonpath={.status.phase}"])).toBe("Pending");
});

test("a service account's token is issued, and RBAC refuses what it was not given", async () => {
  const token = (await api.kubectl(["create", "token", "default", "-n", "billing"])).trim();
  expect(token.split(".")).toHaveLength(3);
  await expect(
    api.kubectl(["get", "pods", "-n", "billing", "--as", "system:serviceaccount:billing:default"]),
  ).rejects.toThrow(/forbidden/i);
});

test("nothing is left when it has stopped", async () => {
  const other = await startApiServer({ controllers: ["serviceaccount-controller"] });
  await other.stop();
  await expect(other.kubectl(["version", "--request-timeout=2s"])).rejects.toThrow();
  expect(existsSync(other.kubeconfigPath)).toBe(false);
});
