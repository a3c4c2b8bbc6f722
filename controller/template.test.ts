import { describe, expect, test } from "vitest";
import { readSpec } from "./api/spec.ts";
import { templateProblem } from "./template.ts";

const ledger = { name: "ledger", secretName: "ledger-db" };

describe("what the API server would refuse is not lost where ours is put beside it", () => {
  const problemOf = (spec: object) => {
    const verdict = readSpec({ databases: [ledger], template: { spec } });
    if (!verdict.ok) throw new Error(verdict.problems.join());
    return templateProblem(verdict.spec);
  };
  const app = { name: "app" };
  const preferred = "preferredDuringSchedulingIgnoredDuringExecution";

  test.each([
    ["env", { containers: [{ ...app, env: { MODE: "live" } }] }],
    ["env", { containers: [app], initContainers: [{ name: "migrate", env: { MODE: "live" } }] }],
    ["volumeMounts", { containers: [{ ...app, volumeMounts: { name: "data", mountPath: "/data" } }] }],
    ["initContainers", { containers: [app], initContainers: { name: "migrate" } }],
    ["volumes", { containers: [app], volumes: { name: "data", emptyDir: {} } }],
    ["preferredDuring", { containers: [app], affinity: { podAntiAffinity: { [preferred]: { weight: 1 } } } }],
  ])("%s that is no list", (field, spec) => {
    expect(problemOf(spec)).toMatchObject({ reason: "InvalidTemplate", message: expect.stringContaining(field) });
  });

  test("a field without a value is as good as none", () => {
    expect(problemOf({ containers: [{ ...app, env: null }], initContainers: null, volumes: null })).toBeNull();
  });
});
