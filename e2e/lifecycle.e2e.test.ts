/** How owned pods live and end on a real node: completion, failure, deletion, a killed sidecar, restricted namespaces. */
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { RESOURCES } from "../controller/kube/api.ts";
import type { RawObject } from "../controller/kube/objects.ts";
import { until } from "../testing/until.ts";
import { RELEASE, SYSTEM_NAMESPACE } from "./controller.ts";
import { type ClusterDatabase, startClusterDatabase } from "./database.ts";
import { FOREVER, openScene, type Scene, SETUP_MS_MAX, scriptContainer } from "./scene.ts";

const NAMESPACE = "lifecycle";
const TEST_MS_MAX = 10 * 60_000;
/** Beyond what any step is waited for: what comes all the same has not waited for it. */
const NEVER_SECONDS = 600;

let scene: Scene;
let database: ClusterDatabase;

beforeAll(async () => {
  scene = await openScene(NAMESPACE);
  database = await startClusterDatabase(scene.cluster, NAMESPACE, (line) => console.error(line));
  // D10: everything in this namespace is held to the strictest profile, the sidecar too.
  await scene.cluster.kubectl(["label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=restricted"]);
}, SETUP_MS_MAX);

afterAll(async () => {
  await database?.close();
  await scene?.close();
});

const restricted = {
  allowPrivilegeEscalation: false,
  capabilities: { drop: ["ALL"] },
  runAsNonRoot: true,
  seccompProfile: { type: "RuntimeDefault" },
};

/** A FencedJob whose application is this script, run by Node.js. */
async function create(name: string, code: string, spec: object = {}, pod: object = {}): Promise<void> {
  const app = {
    ...scriptContainer(scene.scriptImage, code),
    securityContext: restricted,
    env: [
      { name: "PGUSER", value: "invoice_app" },
      { name: "PGDATABASE", value: "ledger" },
    ],
  };
  await scene.create(name, {
    databases: [{ name: "ledger", secretName: "ledger-db" }],
    // None of them waits for it to run out, and no pause of the machine costs one its ownership.
    lease: { durationSeconds: NEVER_SECONDS },
    template: { spec: { restartPolicy: "Never", terminationGracePeriodSeconds: 20, containers: [app], ...pod } },
    ...spec,
  });
}

/** Connects where PGHOST says, as libpq does with a directory; exit 0 when it is let in. */
const CONNECT_TO_SOCKET = `
  const body = Buffer.from("\\0\\x03\\0\\0user\\0invoice_app\\0database\\0ledger\\0\\0", "latin1");
  const length = Buffer.alloc(4);
  length.writeUInt32BE(body.length + 4);
  const socket = require("net").connect(process.env.PGHOST + "/.s.PGSQL." + process.env.PGPORT);
  socket.write(Buffer.concat([length, body]));
  socket.once("data", (answer) => { console.log(String(answer)); process.exit(answer[0] === 0x52 ? 0 : 1); });
`;

const key = (name: string) => ({ namespace: NAMESPACE, name });
const isTrue = async (name: string, type: string): Promise<boolean> =>
  (await scene.condition(name, type))?.status === "True";

describe("the application's end is the job's end", { timeout: TEST_MS_MAX }, () => {
  test("an application of another user than the sidecar's reaches the database by its Unix socket", async () => {
    const databases = [{ name: "ledger", secretName: "ledger-db", socket: true }];
    await create("socket", CONNECT_TO_SOCKET, { databases, backoffLimit: 0 }, { securityContext: { runAsUser: 1234 } });
    await until(() => isTrue("socket", "Complete"));
  });

  test("exit 0 is Complete, and the sidecar does not hold it up until its grace period is over (C01)", async () => {
    await create("well", "", {}, { terminationGracePeriodSeconds: NEVER_SECONDS });
    await until(() => isTrue("well", "Complete"));
    const { startTime, completionTime, history } = await scene.status("well");
    console.error(`complete after ${(Date.parse(completionTime ?? "") - Date.parse(startTime ?? "")) / 1000} s`);
    expect(history).toMatchObject([{ generation: 1, reason: "PodSucceeded" }]);
  });

  test("exit 3 is a failure that names the exit code, and the next pod has the next generation", async () => {
    await create("badly", "process.exit(3)", { backoffLimit: 1 });
    await until(() => isTrue("badly", "Failed"));
    const { history, failures } = await scene.status("badly");
    expect(history.map(({ generation, reason }) => [generation, reason])).toEqual([
      [2, "PodFailed"],
      [1, "PodFailed"],
    ]);
    expect(failures).toBe(2);
    await scene.says("badly", /container app ended with exit code 3/);
  });
});

describe("an owner that is gone is replaced at once", { timeout: TEST_MS_MAX }, () => {
  test("a deleted pod: its application ends first, then the Lease is given back, then the next pod owns", async () => {
    await create("deleted", FOREVER);
    const { pod } = await scene.owner("deleted", 1);
    const startMs = performance.now();
    await scene.api.delete(RESOURCES.pods, key(pod), { gracePeriodSeconds: 2 });
    await scene.owner("deleted", 2);
    console.error(`takeover after a deleted pod: ${((performance.now() - startMs) / 1000).toFixed(1)} s`);
  });

  test("INV-7: a sidecar that is killed and restarted in place does not own again; its pod is replaced", async () => {
    await create("killed", FOREVER, {}, { shareProcessNamespace: true });
    const { pod, uid } = await scene.owner("killed", 1);
    // In its own container, as to the application's the process of the sidecar is another user's. With it the container ends, and what
    // kills it may be killed before it can say that it did; but nothing else ends this ownership.
    const where = ["-n", NAMESPACE, pod, "-c", "fencedjob"];
    const kill = scene.cluster.kubectl(["exec", ...where, "--", "/nodejs/bin/node", "-e", KILL_SIDECAR]);
    await kill.catch((error) => console.error(`killed with the sidecar: ${error}`));
    const next = await scene.owner("killed", 2);
    expect(next.uid).not.toBe(uid);
    const ended = (await scene.status("killed")).history.find(({ generation }) => generation === 1);
    expect(ended?.reason).toBe("RaiseRefused");
  });
});

describe("what the application's container gets", { timeout: TEST_MS_MAX }, () => {
  test("its database on 127.0.0.1:5432, and neither token nor credentials (D11, D12)", async () => {
    const code = `
      const fs = require("fs");
      const seen = ["/var/run/secrets/kubernetes.io", "/var/run/fencedjob", "/etc/fencedjob"].filter((path) => fs.existsSync(path));
      if (seen.length || Object.values(process.env).some((value) => value.includes("demo-app"))) process.exit(4);
      if (process.env.PGHOST + ":" + process.env.PGPORT !== "127.0.0.1:5432") process.exit(5);
      require("net").connect(5432, "127.0.0.1", () => process.exit(0)).on("error", () => process.exit(6));`;
    await create("inside", code, { backoffLimit: 0 });
    await until(async () => (await isTrue("inside", "Complete")) || (await isTrue("inside", "Failed")));
    expect((await scene.condition("inside", "Failed"))?.message).not.toMatch(/exit code/);
    expect(await isTrue("inside", "Complete")).toBe(true);
  });
});

describe("deletion", { timeout: TEST_MS_MAX }, () => {
  test("a job that waits for ownership does not wait for the end of its grace period (C05), and one that owns ends its application first", async () => {
    const databases = [{ name: "ledger", secretName: "absent" }];
    await create("waiting", FOREVER, { databases }, { terminationGracePeriodSeconds: NEVER_SECONDS });
    await until(async () => (await scene.status("waiting")).owner?.pod);
    await create("owning", FOREVER);
    await scene.owner("owning", 1);
    const startMs = performance.now();
    for (const name of ["waiting", "owning"])
      await scene.api.delete(RESOURCES.fencedJobs, key(name), { propagationPolicy: "Background" });
    await until(() => scene.podIsGone("waiting-1"));
    console.error(`gone while it waited: ${((performance.now() - startMs) / 1000).toFixed(1)} s`);
    await until(() => scene.podIsGone("owning-1"));
  });

  test("INV-1, INV-8: a job that is created anew meets the fence of the old one and continues above it", async () => {
    await create("again", "");
    await until(() => isTrue("again", "Complete"));
    await scene.api.delete(RESOURCES.fencedJobs, key("again"), { propagationPolicy: "Foreground" });
    // In the foreground the pods go first, then the job itself.
    await until(() => scene.jobIsGone("again"));
    await create("again", FOREVER);
    const { generation } = await until(async () => {
      const { owner, fence } = await scene.status("again");
      return owner && fence === owner.generation ? owner : null;
    });
    expect(generation).toBeGreaterThan(1);
    const [row] = await database.query<{ generation: number }>(
      "SELECT generation::int FROM fence.job WHERE name = $1",
      [`${NAMESPACE}/again`],
    );
    expect(row).toEqual({ generation });
  });

  test("without a controller a deletion waits, disturbs nobody, and can be let go by hand; it goes on by itself with the next one (D07)", async () => {
    for (const name of ["byhand", "later"]) await create(name, FOREVER);
    for (const name of ["byhand", "later"]) await scene.owner(name, 1);
    const { kubectl } = scene.cluster;
    const controller = ["-n", SYSTEM_NAMESPACE, "deployment/fencedjob"];
    const replicas = await kubectl(["get", ...controller, "-o", "jsonpath={.spec.replicas}"]);
    await kubectl(["scale", ...controller, "--replicas=0"]);
    try {
      const pods = ["-n", SYSTEM_NAMESPACE, "-l", `app.kubernetes.io/instance=${RELEASE}`];
      // One that is being stopped may still see the deletion, and carry it out.
      await kubectl(["wait", "--for=delete", "pod", ...pods, "--timeout=120s"]);
      for (const name of ["byhand", "later"])
        await scene.api.delete(RESOURCES.fencedJobs, key(name), { propagationPolicy: "Background" });
      const nothing = JSON.stringify({ metadata: { finalizers: null } });
      await kubectl(["patch", "fencedjob", "-n", NAMESPACE, "byhand", "--type", "merge", "-p", nothing]);
      await until(() => scene.podIsGone("byhand-1"));
      // The owner of the other is still one: its sidecar renews.
      const { deletionTimestamp } = (await scene.api.get<RawObject>(RESOURCES.pods, key("later-1"))).metadata;
      expect(deletionTimestamp).toBeUndefined();
      expect(await scene.jobIsGone("later")).toBe(false);
    } finally {
      await kubectl(["scale", ...controller, `--replicas=${replicas}`]);
      await kubectl(["rollout", "status", ...controller, "--timeout=300s"]);
    }
    await until(() => scene.jobIsGone("later"));
    await until(() => scene.podIsGone("later-1"));
  });
});

/** Finds the sidecar among the processes of the pod and ends it without warning. */
const KILL_SIDECAR = `
  const fs = require("fs");
  for (const pid of fs.readdirSync("/proc").filter((name) => /^[0-9]+$/.test(name))) {
    let command = "";
    try { command = fs.readFileSync("/proc/" + pid + "/cmdline", "utf8"); } catch {} // it has ended
    if (command.split("\\0").includes("sidecar")) process.kill(Number(pid), "SIGKILL");
  }`;
