/** One FencedJob whose application writes without a pause, a cause that takes its owner away, and what that cost. */
import type { Owner } from "../../controller/api/status.ts";
import { RESOURCES } from "../../controller/kube/api.ts";
import type { RawObject } from "../../controller/kube/objects.ts";
import { until } from "../../testing/until.ts";
import { SYSTEM_NAMESPACE } from "../controller.ts";
import { type Scene, scriptContainer } from "../scene.ts";
import { WRITER } from "./application.ts";
import type { Ledger, Writer } from "./ledger.ts";

export const SECRET = "ledger-db";
/** An extended resource, see `#seats`. */
export const SEAT = "example.com/seat";
/** Generous: what is measured is written down, never asserted. */
const STEP_MS_MAX = 120_000;
/** So that the application is seen at work before and after. */
const ROWS_MIN = 10;

export interface Job {
  readonly name: string;
  /** Of the FencedJob's spec, beside databases and template. */
  readonly spec?: object;
  readonly podSpec?: object;
  /** What the application does when it is asked to end: exit, ignore it, or go on for so many ms. */
  readonly onSigterm?: "exit" | "ignore" | number;
  readonly container?: object;
}

export interface Taken {
  /** From the cause to the commit of the next owner's first row, both by the database. */
  readonly takeoverMs: number;
  /** From the last row of the one to the first of the other. */
  readonly silentMs: number;
  /** Rows of the predecessor that were committed after the successor's first. */
  readonly staleRows: number;
  /** Why the ownership ended, as the status says. */
  readonly reason: string;
  readonly from: Writer;
  readonly to: Writer;
}

/** Brings about the failure; what it returns mends it again. */
export type Cause = (owner: Owner & { readonly ip: string }) => Promise<(() => Promise<void>) | undefined | void>;

export class Stage {
  readonly scene: Scene;
  readonly ledger: Ledger;
  /** Where the controller runs: a node that is not lost. */
  stays = "";
  /** A node that may be lost. */
  goes = "";

  constructor(scene: Scene, ledger: Ledger) {
    this.scene = scene;
    this.ledger = ledger;
  }

  /** The Secret of all jobs, a seat on one node and two priorities to fight for it. */
  async setUp(): Promise<void> {
    const { scene, ledger } = this;
    const field = "jsonpath={.items[*].spec.nodeName}";
    const nodes = await scene.cluster.kubectl(["get", "pods", "-n", SYSTEM_NAMESPACE, "-o", field]);
    this.stays = nodes.split(" ")[0] ?? "";
    this.goes = this.stays === "node-1" ? "node-2" : "node-1";
    const priority = (name: string, value: number): object => ({
      apiVersion: "scheduling.k8s.io/v1",
      kind: "PriorityClass",
      metadata: { name },
      value,
    });
    const items = [
      {
        apiVersion: "v1",
        kind: "Secret",
        metadata: { name: SECRET, namespace: scene.namespace },
        stringData: { uri: ledger.uri },
      },
      priority("takeover-low", -10),
      priority("takeover-high", 1000),
    ];
    await scene.cluster.kubectl(["apply", "-f", "-"], JSON.stringify({ apiVersion: "v1", kind: "List", items }));
    await this.#seats({ capacity: { [SEAT]: "1" } });
  }

  async tearDown(): Promise<void> {
    await this.#seats({ capacity: { [SEAT]: null } });
    await this.scene.cluster.kubectl([
      "delete",
      "priorityclass",
      "takeover-low",
      "takeover-high",
      "--ignore-not-found",
    ]);
  }

  /** A resource of which one node has one piece: who gets it does not depend on the machine's size. */
  async #seats(status: object): Promise<void> {
    await this.scene.api.patch(RESOURCES.nodes, { name: this.stays }, { status }, { subresource: "status" });
  }

  /** A pod of higher priority takes the seat, and ends after a second. */
  async preempt(): Promise<void> {
    const { scene } = this;
    const container = {
      ...scriptContainer(scene.scriptImage, "setTimeout(() => {}, 1000)"),
      resources: { limits: { [SEAT]: "1" } },
    };
    const spec = { restartPolicy: "Never", priorityClassName: "takeover-high", containers: [container] };
    await scene.api.create(RESOURCES.pods, {
      metadata: { name: "preemptor", namespace: scene.namespace },
      spec,
    } as RawObject);
  }

  async create(job: Job): Promise<void> {
    const { name, spec, podSpec, container } = job;
    const env = { JOB: name, PGUSER: "writer", PGDATABASE: "postgres", ON_SIGTERM: String(job.onSigterm ?? "exit") };
    const app = {
      name: "app",
      image: this.scene.scriptImage,
      imagePullPolicy: "IfNotPresent",
      command: ["/nodejs/bin/node", "--input-type=module", "-e", WRITER],
      env: Object.entries(env).map(([name, value]) => ({ name, value })),
      ...container,
    };
    await this.scene.create(name, {
      databases: [{ name: "ledger", secretName: SECRET }],
      backoffLimit: 20,
      template: {
        spec: { restartPolicy: "Never", terminationGracePeriodSeconds: 5, containers: [app], ...podSpec },
      },
      ...spec,
    });
  }

  /** The pod that `create` brings about starts on the node that may be lost; the next one starts where the scheduler likes. */
  async whereItMayBeLost(create: () => Promise<void>): Promise<void> {
    const { cluster, namespace } = this.scene;
    await cluster.kubectl(["cordon", this.stays]);
    try {
      await create();
      const field = `--field-selector=spec.nodeName=${this.goes}`;
      await until(async () => (await cluster.kubectl(["get", "pods", "-n", namespace, "-o", "name", field])) !== "");
    } finally {
      await cluster.kubectl(["uncordon", this.stays]);
    }
  }

  /** The owner, once its application writes. */
  async owner(name: string): Promise<Owner & { readonly ip: string }> {
    const owner = await until(async () => (await this.scene.status(name)).owner, STEP_MS_MAX, {
      what: `${name} has an owner`,
    });
    await this.ledger.writes(name, owner.pod, ROWS_MIN, STEP_MS_MAX);
    const pod = await this.scene.api.get<RawObject>(RESOURCES.pods, {
      namespace: this.scene.namespace,
      name: owner.pod,
    });
    return { ...owner, ip: (pod.status as { podIP: string }).podIP };
  }

  /** `cause` takes the owner away; measured from its start, or from the owner's last row where the application is the cause. */
  async takeover(name: string, cause: Cause, since: "cause" | "lastRow" = "cause"): Promise<Taken> {
    const { scene, ledger } = this;
    const owner = await this.owner(name);
    const causedMs = await ledger.nowMs();
    const mend = await cause(owner);
    let successor: Writer;
    try {
      successor = await until(
        async () => (await ledger.writers(name)).find(({ pod }) => pod !== owner.pod),
        STEP_MS_MAX,
        { what: `${name} has another writer than ${owner.pod}` },
      );
    } finally {
      await mend?.();
    }
    await ledger.writes(name, successor.pod, ROWS_MIN, STEP_MS_MAX);
    const { history } = await scene.status(name);
    // A job that was made anew does not know the old one's owners: its own first one then.
    const ended = history.find(({ uid }) => uid === owner.uid) ?? history.at(-1);
    const from = await ledger.writes(name, owner.pod, 1, STEP_MS_MAX);
    const [{ stale }] = (await ledger.query<{ stale: number }>(
      `SELECT count(*)::int AS stale FROM written WHERE job = $1 AND pod = $2
       AND pg_xact_commit_timestamp(xmin) > (SELECT min(pg_xact_commit_timestamp(xmin)) FROM written WHERE job = $1 AND pod = $3)`,
      [name, owner.pod, successor.pod],
    )) as [{ stale: number }];
    return {
      takeoverMs: successor.firstMs - (since === "cause" ? causedMs : from.lastMs),
      silentMs: successor.firstMs - from.lastMs,
      staleRows: stale,
      reason: ended?.reason ?? "",
      from,
      to: successor,
    };
  }

  /** One candidate's sidecar runs beside the owner. */
  async standbyRuns(name: string): Promise<void> {
    const { scene } = this;
    await until(async () => {
      const [candidate] = (await scene.status(name)).candidates;
      if (!candidate) return false;
      const pod = await scene.api.get<RawObject>(RESOURCES.pods, { namespace: scene.namespace, name: candidate.pod });
      const { initContainerStatuses = [] } = pod.status as {
        initContainerStatuses?: { state?: { running?: object } }[];
      };
      return initContainerStatuses[0]?.state?.running !== undefined;
    }, STEP_MS_MAX);
  }

  /** The same spec under the same name, with nothing remembered of the old one but its fence. */
  async makeAnew(name: string): Promise<void> {
    const { scene } = this;
    const key = { namespace: scene.namespace, name };
    const { metadata, spec } = await scene.api.get<RawObject>(RESOURCES.fencedJobs, key);
    await scene.api.delete(RESOURCES.fencedJobs, key, {
      propagationPolicy: "Background",
      preconditions: { uid: metadata.uid ?? "" },
    });
    await until(() => scene.jobIsGone(name), STEP_MS_MAX);
    await scene.create(name, spec as object);
  }

  /** So that it takes no processor from the next one. */
  async remove(name: string): Promise<void> {
    await this.scene.api.delete(
      RESOURCES.fencedJobs,
      { namespace: this.scene.namespace, name },
      { propagationPolicy: "Background" },
    );
  }
}
