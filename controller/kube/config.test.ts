import { execFile } from "node:child_process";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { promisify } from "node:util";
import { afterEach, beforeEach, expect, onTestFinished, test, vi } from "vitest";
import { inClusterConfig, loadKubeConfig } from "./config.ts";

let directory: string;
const write = (name: string, content: string) => writeFile(path.join(directory, name), content);

beforeEach(async () => {
  directory = await mkdtemp(path.join(tmpdir(), "fencedjob-config-"));
  await write("token", "first\n");
  await write("ca.crt", "CA");
  await write("namespace", "billing");
});

afterEach(() => rm(directory, { recursive: true }));

test("in a cluster the token and the CA are read anew for each request", async () => {
  const env = { KUBERNETES_SERVICE_HOST: "10.96.0.1", KUBERNETES_SERVICE_PORT: "6443" };
  const config = await inClusterConfig(env, directory);
  expect(config).toMatchObject({ baseUrl: "https://10.96.0.1:6443", namespace: "billing" });
  expect(await config.credentials()).toEqual({ headers: { authorization: "Bearer first" }, tls: { ca: "CA" } });
  await write("token", "second");
  expect((await config.credentials()).headers).toEqual({ authorization: "Bearer second" });
});

test("an IPv6 address of the API server is a valid URL", async () => {
  const { baseUrl } = await inClusterConfig({ KUBERNETES_SERVICE_HOST: "fd00::1" }, directory);
  expect(new URL(baseUrl).hostname).toBe("[fd00::1]");
});

test("a kubeconfig gives address, token, CA and namespace of the context asked for", async () => {
  await write(
    "config",
    `apiVersion: v1
kind: Config
current-context: other
clusters: [{name: c, cluster: {server: "https://api:6443", certificate-authority-data: Q0E=}}]
users: [{name: u, user: {token: secret}}]
contexts: [{name: mine, context: {cluster: c, user: u, namespace: billing}}]
`,
  );
  const kubeconfigPath = path.join(directory, "config");
  const config = await loadKubeConfig({ env: { KUBERNETES_SERVICE_HOST: "ignored" }, kubeconfigPath, context: "mine" });
  expect(config).toMatchObject({ baseUrl: "https://api:6443", namespace: "billing" });
  const { headers, tls } = await config.credentials();
  expect(headers).toEqual({ Authorization: "Bearer secret" });
  expect(tls).toEqual({ ca: Buffer.from("CA") });
  await expect(loadKubeConfig({ env: {}, kubeconfigPath })).rejects.toThrow(/No API server: .* has no context other/);
});

test.each([
  ["no kubeconfig at all", "", /there is no kubeconfig \(~\/\.kube\/config\).*Set KUBECONFIG/],
  ["a file that is not there", "/nowhere/config", /the kubeconfig \(\/nowhere\/config\) cannot be read: ENOENT/],
])("%s is told as that, and no server is made up", async (_what, KUBECONFIG, words) => {
  vi.stubEnv("HOME", directory);
  vi.stubEnv("KUBECONFIG", KUBECONFIG);
  onTestFinished(() => void vi.unstubAllEnvs());
  await expect(loadKubeConfig({ env: { KUBECONFIG } })).rejects.toThrow(words);
});

test("neither the controller in a cluster nor the sidecar loads the Kubernetes client library", async () => {
  const script = `
    import { registerHooks } from "node:module";
    const loaded = [];
    registerHooks({ resolve: (name, context, next) => (loaded.push(name), next(name, context)) });
    const { inClusterConfig } = await import("./controller/kube/config.ts");
    for (const file of ["api", "reflector", "queue", "events"]) await import("./controller/kube/" + file + ".ts");
    await import("./sidecar/leaseclient.ts");
    await inClusterConfig({ KUBERNETES_SERVICE_HOST: "h" }, process.argv[1]);
    console.log(JSON.stringify(loaded.filter((name) => !/^(node:|\\.|file:)/.test(name))));
  `;
  const root = path.resolve(import.meta.dirname, "../..");
  const args = ["--input-type=module", "-e", script, directory];
  const { stdout } = await promisify(execFile)(process.execPath, args, { cwd: root });
  expect(JSON.parse(stdout)).toEqual([]);
});
