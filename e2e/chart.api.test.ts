/** The Helm chart against a real API server: what it renders is accepted, what it must refuse is refused. */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { parse, parseAllDocuments } from "yaml";
import { startApiServer, type TestApiServer } from "../testing/apiserver.ts";
import { build, programPath } from "./cluster/build.ts";
import { run } from "./cluster/command.ts";
import { checkout } from "./cluster/paths.ts";

const CHART = join(checkout, "charts/fencedjob");
const BUILD_MS_MAX = 10 * 60_000;

let server: TestApiServer;

beforeAll(async () => {
  await build(["helm"], (line) => console.error(line));
  server = await startApiServer();
  await server.createNamespace("fencedjob-system");
  await server.createNamespace("billing");
}, BUILD_MS_MAX);

afterAll(() => server?.stop());

const render = (...args: string[]): Promise<string> => renderAs("fencedjob", ...args);
const renderAs = (release: string, ...args: string[]): Promise<string> =>
  run([programPath("helm"), "template", release, CHART, "-n", "fencedjob-system", ...args]);

interface Rendered {
  kind: string;
  metadata: { name: string; namespace?: string; annotations?: Record<string, string> };
  rules?: { resources: string[]; verbs: string[] }[];
  spec?: unknown;
}

const objects = (text: string): Rendered[] =>
  parseAllDocuments(text)
    .map((document) => document.toJS() as Rendered | null)
    .filter((object) => object !== null);

test.each([
  ["the default values", []],
  [
    "one namespace, a digest, annotations",
    [
      "--set",
      "watchNamespace=billing",
      "--set",
      `image.digest=sha256:${"a".repeat(64)}`,
      "--set",
      "podAnnotations.a=b",
    ],
  ],
])("the API server accepts every object of %s", async (_what, args) => {
  const text = await render(...args);
  const answer = await server.kubectl(["apply", "--dry-run=server", "--validate=strict", "-f", "-"], text);
  expect(answer.trim().split("\n")).toHaveLength(objects(text).length);
});

test("the default controller may read no Secret, and nothing with a wildcard", async () => {
  for (const { rules = [] } of objects(await render())) {
    for (const { resources, verbs } of rules) {
      expect(resources).not.toContain("secrets");
      expect([...resources, ...verbs]).not.toContain("*");
    }
  }
});

test("the controller has the verbs that its code uses, and no other", async () => {
  const role = objects(await render()).find(
    ({ kind, metadata }) => kind === "ClusterRole" && metadata.name === "fencedjob",
  );
  expect(role?.rules?.map(({ resources, verbs }) => [resources.join(), verbs.join()])).toEqual([
    ["fencedjobs", "get,list,watch,update,delete"],
    ["fencedjobs/status,fencedjobs/finalizers", "update"],
    ["pods", "get,list,watch,create,delete"],
    ["leases", "get,list,watch,create,update"],
    // Server-side apply.
    ["serviceaccounts", "create,patch"],
    ["roles,rolebindings", "create,patch"],
    ["events", "create,patch"],
  ]);
});

test("releases of one name, each for its own namespace, share no object", async () => {
  const names = async (namespace: string): Promise<string[]> =>
    objects(await render("-n", namespace, "--set", `watchNamespace=${namespace}`, "--set", "crds.install=false")).map(
      ({ kind, metadata }) => [kind, metadata.namespace, metadata.name].join("/"),
    );
  const others = await names("shipping");
  expect((await names("billing")).filter((name) => others.includes(name))).toEqual([]);
});

test("nothing is called as a FencedJob's account and role are: made in the release's namespace, it would take the controller's place", async () => {
  for (const release of ["invoices", "my-fencedjob", "a-fencedjob-fencedjob", `${"a".repeat(40)}-fencedjob`]) {
    const names = objects(await renderAs(release, "--set", "watchNamespace=fencedjob-system")).map(
      ({ metadata }) => metadata.name,
    );
    expect(names.filter((name) => name.endsWith("-fencedjob"))).toEqual([]);
  }
});

test("with watchNamespace the controller's rights end at that namespace", async () => {
  const kinds = objects(await render("--set", "watchNamespace=billing"))
    .filter(({ rules }) => rules?.some(({ resources }) => resources.includes("pods")))
    .map(({ kind, metadata }) => [kind, metadata.namespace]);
  expect(kinds).toEqual([["Role", "billing"]]);
});

test("a namespace may have a name that YAML takes for a number or a truth", async () => {
  for (const name of ["2024", "no"]) {
    const rendered = await render("-n", name, "--set-string", `watchNamespace=${name}`);
    expect(rendered).toContain(`namespace: "${name}"`);
    expect(rendered).not.toMatch(new RegExp(`(namespace|metadata\\.name): ${name}\\b`));
  }
});

test.each([
  "watchNamespace",
  "workers",
  "replicas",
  "imagePullSecrets",
  "image.tag",
  "image.pullPolicy",
  "leaderElection",
  "policy.exemptUsers",
  "serviceAccount.annotations",
  "resources",
  "sidecar.resources",
])(
  "without %s, as an empty line in somebody's values leaves it, the API server's and the controller's own defaults hold",
  async (value) => {
    const text = await render("--set", `${value}=null`);
    const answer = await server.kubectl(["apply", "--dry-run=server", "--validate=strict", "-f", "-"], text);
    expect(answer.trim().split("\n")).toHaveLength(objects(text).length);
    // One role for all namespaces, and no variable that is there and empty.
    expect(objects(text).map(({ kind, metadata }) => [kind, metadata.name])).toContainEqual([
      "ClusterRole",
      "fencedjob",
    ]);
    expect(text).not.toMatch(/value: *(""|"null"|\}|$)/m);
  },
);

test("what runs after an uninstall has the rights that it uses, and no other", async () => {
  const role = objects(await render()).find(
    ({ kind, metadata }) => kind === "ClusterRole" && metadata.name === "fencedjob-release",
  );
  expect(role?.rules).toMatchObject([{ resources: ["fencedjobs"], verbs: ["list", "update"] }]);
});

test("a private registry: the controller is pulled with its Secret, and so is what lets go of the FencedJobs after an uninstall", async () => {
  const pods = objects(await render("--set", "imagePullSecrets[0].name=regcred")).flatMap(({ kind, spec }) =>
    kind === "Deployment" || kind === "Job" ? (spec as { template: object }).template : [],
  );
  expect(pods).toHaveLength(2);
  for (const pod of pods) expect(pod).toMatchObject({ spec: { imagePullSecrets: [{ name: "regcred" }] } });
});

test("one replica has no budget that would stop a drain; more of them have", async () => {
  const kinds = async (replicas: number): Promise<string[]> =>
    objects(await render("--set", `replicas=${replicas}`)).map(({ kind }) => kind);
  expect(await kinds(1)).not.toContain("PodDisruptionBudget");
  expect(await kinds(2)).toContain("PodDisruptionBudget");
});

test("the controllers elect in their own namespace, wherever they watch, and may change that one Lease only", async () => {
  for (const args of [[], ["--set", "watchNamespace=billing"]]) {
    const role = objects(await render(...args)).find(({ metadata }) => metadata.name === "fencedjob-election");
    expect(role?.metadata.namespace).toBe("fencedjob-system");
    expect(role?.rules).toMatchObject([
      { resourceNames: ["fencedjob-controller"], verbs: ["get", "watch", "update"] },
      { verbs: ["create"] },
    ]);
  }
});

test("the chart's CRD is that of crds/, and stays when the release goes", async () => {
  const crd = objects(await render()).find(({ kind }) => kind === "CustomResourceDefinition");
  expect(crd?.metadata.annotations).toEqual({ "helm.sh/resource-policy": "keep" });
  expect(crd?.spec).toEqual(parse(readFileSync(join(checkout, "crds/fencedjob.yaml"), "utf8")).spec);
  expect(await render("--set", "crds.install=false")).not.toContain("CustomResourceDefinition");
});

test.each([
  ["a misspelt value", "imagePullPolicy=Always", /imagePullPolicy/],
  ["a digest that is none", "image.digest=latest", /digest/],
  ["no worker", "workers=0", /workers/],
  ["a namespace that is none", "watchNamespace=Billing", /watchNamespace/],
  ["no word on the policy", "policy=null", /policy/],
  ["no word on the CRD", "crds.install=null", /crds/],
  ["a sidecar's resources that no pod could have", "sidecar.resources.limit.cpu=1", /limit/],
  ["a sidecar's memory in a unit that is none", "sidecar.resources.limits.memory=256MB", /256MB/],
  ["an election that one slow request ends", "leaderElection.requestTimeoutSeconds=4", /must be below durationSeconds/],
])("%s is refused before anything is installed", async (_what, value, message) => {
  await expect(render("--set", value)).rejects.toThrow(message);
});
