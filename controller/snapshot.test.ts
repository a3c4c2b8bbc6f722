/** What the controller sees in a pod. */
import { expect, test } from "vitest";
import { type RawPod, viewPod } from "./snapshot.ts";

function pod(
  status: RawPod["status"],
  change: NonNullable<RawPod["spec"]> & { deletionTimestamp?: string } = {},
): RawPod {
  const { deletionTimestamp, ...spec } = change;
  const metadata = { name: "run-1", namespace: "billing", uid: "u", ...(deletionTimestamp && { deletionTimestamp }) };
  return { metadata, spec: { restartPolicy: "Never", ...spec }, ...(status && { status }) };
}

test.each([
  ["PreemptionByScheduler", "Preempted"],
  ["EvictionByEvictionAPI", "Evicted"],
  ["TerminationByKubelet", "Evicted"],
  ["DeletionByTaintManager", "NodeLost"],
  ["SomethingNew", "Evicted"],
])("a disruption of kind %s is %s, whether the pod has ended or not (D14)", (reason, ours) => {
  const conditions = [{ type: "DisruptionTarget", status: "True", reason }];
  expect(viewPod(pod({ phase: "Running", conditions }), null).leaving).toBe(ours);
  expect(
    viewPod(pod({ phase: "Failed", conditions }, { deletionTimestamp: "2026-11-29T13:00:00Z" }), null).leaving,
  ).toBe(ours);
});

test("a pod that somebody deletes leaves, one that fails by itself does not", () => {
  expect(viewPod(pod({}, { deletionTimestamp: "2026-11-29T13:00:00Z" }), null).leaving).toBe("PodDeleted");
  expect(viewPod(pod({ phase: "Failed" }), null).leaving).toBeNull();
});

test("tries in place are counted for OnFailure, without the sidecar's; a long-running owner may be started again as often as it takes", () => {
  const status = {
    initContainerStatuses: [
      { name: "fencedjob", restartCount: 7 },
      { name: "migrate", restartCount: 1 },
    ],
    containerStatuses: [{ name: "app", restartCount: 2 }],
  };
  expect(viewPod(pod(status, { restartPolicy: "OnFailure" }), null)).toMatchObject({ retries: 3, longRunning: false });
  expect(viewPod(pod(status, { restartPolicy: "Always" }), null)).toMatchObject({ retries: 0, longRunning: true });
});

test("a native sidecar of the template that is started again is no try of the job (C09)", () => {
  const initContainers = ["fencedjob", "log-shipper", "migrate"].map((name) =>
    name === "migrate" ? { name } : { name, restartPolicy: "Always" },
  );
  const status = {
    initContainerStatuses: initContainers.map(({ name }) => ({ name, restartCount: name === "log-shipper" ? 9 : 1 })),
    containerStatuses: [{ name: "app", restartCount: 2 }],
  };
  expect(viewPod(pod(status, { restartPolicy: "OnFailure", initContainers }), null).retries).toBe(3);
});

test("an application that has given up and waits to be started again has started, and does not run", () => {
  const view = (...states: object[]) =>
    viewPod(pod({ containerStatuses: states.map((state, i) => ({ name: `c${i}`, state, restartCount: 1 })) }), null);
  const ended = (exitCode: number) => ({ terminated: { exitCode } });
  const crashing = { waiting: { reason: "CrashLoopBackOff" } };
  expect(view({ running: {} })).toMatchObject({ applicationStarted: true, applicationRuns: true });
  expect(view({ running: {} }, ended(0)).applicationRuns).toBe(true);
  expect(view(crashing)).toMatchObject({ applicationStarted: true, applicationRuns: false });
  expect(view({ running: {} }, crashing).applicationRuns).toBe(false);
  expect(view({ running: {} }, ended(1)).applicationRuns).toBe(false);
  expect(view(ended(0)).applicationRuns).toBe(false);
});

test("a pod has failed when its application has, though its sidecar still runs; not while a container runs or may be started again", () => {
  const sidecar = [{ name: "fencedjob", state: { running: {} } }];
  const view = (states: object[], restartPolicy = "Never") =>
    viewPod(
      pod(
        {
          phase: "Running",
          initContainerStatuses: sidecar,
          containerStatuses: states.map((state, index) => ({ name: `c${index}`, state })),
        },
        { restartPolicy },
      ),
      null,
    );
  const end = (exitCode: number) => ({ terminated: { exitCode } });
  expect(view([end(1)])).toMatchObject({ failed: true, failure: "container c0 ended with exit code 1 (Error)" });
  expect(view([end(0), end(3)]).failed).toBe(true);
  expect(view([end(1), { running: {} }]).failed).toBe(false);
  expect(view([end(1), { waiting: {} }]).failed).toBe(false);
  expect(view([end(0)]).failed).toBe(false);
  expect(view([end(1)], "OnFailure").failed).toBe(false);
  expect(view([end(1)], "Always").failed).toBe(false);
  expect(view([]).failed).toBe(false);
  expect(viewPod(pod({ phase: "Failed" }), null).failed).toBe(true);
});

test("a pod's databases are those that its sidecar was told; of somebody else's pod, that may have been told anything, none", () => {
  const databases = (value: string) => {
    const env = [{ name: "FENCEDJOB_SIDECAR", value }];
    return viewPod(pod({}, { initContainers: [{ name: "fencedjob", env }] }), null).databases;
  };
  const ledger = { name: "ledger", secretName: "ledger-db" };
  expect(databases(JSON.stringify({ databases: [{ ...ledger, port: 5432 }] }))).toEqual([ledger]);
  for (const other of ["", "{", "null", '{"databases": [null]}']) expect(databases(other)).toEqual([]);
  expect(viewPod(pod({}), null).databases).toEqual([]);
});
