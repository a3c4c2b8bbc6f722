/** One FencedJob whose application writes without a pause, a cause that takes its owner away, and what that cost. */
import type { Owner } from "../../controller/api/status.ts";
import { RESOURCES } from "../../controller/kube/api.ts";
import { ifThere } from "../../controller/kube/errors.ts";
import type { RawObject } from "../../controller/kube/objects.ts";
import { JOB_LABEL, SIDECAR_NAME } from "../../controller/snapshot.ts";
import { until } from "../../testing/until.ts";
import { SYSTEM_NAMESPACE } from "../controller.ts";
import { type Scene, scriptContainer } from "../scene.ts";
import { WRITER } from "./application.ts";
import type { Ledger, Writer } from "./ledger.ts";

export const SECRET = "ledger-db";
/** An extended resource, see `#seats`. */
export const SEAT = "example.com/seat";
/** Generous: what is measured is written down, never asserted. */
export const STEP_MS_MAX = 240_000;
/** Where it has to run out. */
export const LEASE_SECONDS = 10;
/** Elsewhere: longer than an API server is away on a busy machine that starts it anew. */
export const LONG_LEASE_SECONDS = 120;
/** So that the application is seen at work before and after. */
const ROWS_MIN = 10;

export interface Job {
  readonly name: string;
  /** Of the FencedJob's spec, beside databases, lease and template. */
  readonly spec?: object;
  /** The lease is short enough to run out. */
  readonly waitsForLease?: boolean;
  readonly podSpec?: object;
  /** What the application does when it is asked to end: exit, ignore it, or go on for so many ms. */
  readonly onSigterm?: "exit" | "ignore" | number;
  readonly container?: object;
  /** Of the application, beside what it needs. */
  readonly env?: Readonly<Record<string, string>>;
}

export interface Taken {
  /** From the cause to the commit of the next owner's first row, both by the database. */
  readonly takeoverMs: number;
  /** From the last row of the one to the first of the other. */
  readonly silentMs: number;
  /**
   * Rows of predecessors that were committed after the successor's first; where the database was set back, after that, as
   * nobody of the history before may write in the new one.
   */
  readonly staleRows: number;
  /** Why the ownership ended, as the status says. */
  readonly reason: string;
  readonly from: Writer;
  readonly to: Writer;
}

/**
 * Brings about the failure; what it returns mends it again. What it does before it says `begins` is not measured: it belongs
 * to the failure and is not FencedJob's, such as the time that a restore takes.
 */
export type Cause = (
  owner: Owner & { readonly ip: string },
  begins: () => Promise<void>,
) => Promise<(() => Promise<void>) | undefined | void>;

/** `mend`, for the end of the scenario; if what else belongs to the cause fails, at once: the next one needs the cluster whole. */
export async function mendedAfter(
  mend: () => Promise<unknown>,
  act: () => Promise<unknown>,
): Promise<() => Promise<void>> {
  const mended = async (): Promise<void> => void (await mend());
  try {
    await act();
  } catch (error) {
    await mended();
    throw error;
  }
  return mended;
}

export class Stage {
  readonly scene: Scene;
  readonly ledger: Ledger;
  /** Of the jobs that are created here; its address is the ledger's. */
  readonly secret: string;
  /** Where the controller runs: a node that is not lost. */
  stays = "";
  /** A node that may be lost. */
  goes = "";

  constructor(scene: Scene, ledger: Ledger, secret = SECRET) {
    this.scene = scene;
    this.ledger = ledger;
    this.secret = secret;
  }

  /** The Secret of all jobs, a seat on one node and two priorities to fight for it. */
  async setUp(): Promise<void> {
    const { scene } = this;
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
    await this.putSecret();
    const items = [priority("takeover-low", -10), priority("takeover-high", 1000)];
    await scene.cluster.kubectl(["apply", "-f", "-"], JSON.stringify({ apiVersion: "v1", kind: "List", items }));
    await this.#seats({ capacity: { [SEAT]: "1" } });
  }

  async putSecret(name = this.secret, uri = this.ledger.uri): Promise<void> {
    const { scene } = this;
    const metadata = { name, namespace: scene.namespace };
    const secret = { apiVersion: "v1", kind: "Secret", metadata, stringData: { uri } };
    await scene.cluster.kubectl(["apply", "-f", "-"], JSON.stringify(secret));
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
    const onSigterm = String(job.onSigterm ?? "exit");
    const env = { JOB: name, PGUSER: "writer", PGDATABASE: "postgres", ON_SIGTERM: onSigterm, ...job.env };
    const app = {
      name: "app",
      image: this.scene.scriptImage,
      imagePullPolicy: "IfNotPresent",
      command: ["/nodejs/bin/node", "--input-type=module", "-e", WRITER],
      env: [
        { name: "POD_UID", valueFrom: { fieldRef: { fieldPath: "metadata.uid" } } },
        ...Object.entries(env).map(([name, value]) => ({ name, value })),
      ],
      ...container,
    };
    await this.scene.create(name, {
      databases: [{ name: "ledger", secretName: this.secret }],
      lease: { durationSeconds: job.waitsForLease ? LEASE_SECONDS : LONG_LEASE_SECONDS },
      backoffLimit: 20,
      template: {
        spec: { restartPolicy: "Never", terminationGracePeriodSeconds: 5, containers: [app], ...podSpec },
      },
      ...spec,
    });
  }

  /** The job's first pod starts on the node that may be lost; the next one starts where the scheduler likes. */
  async createWhereItMayBeLost(job: Job): Promise<void> {
    const { cluster, namespace } = this.scene;
    await cluster.kubectl(["cordon", this.stays]);
    try {
      await this.create(job);
      // Of this job: those of others may still be there, or end there.
      const pods = ["get", "pods", "-n", namespace, "-o", "name", "-l", `${JOB_LABEL}=${job.name}`];
      const there = `--field-selector=spec.nodeName=${this.goes}`;
      await until(async () => (await cluster.kubectl([...pods, there])) !== "", STEP_MS_MAX, {
        what: `${job.name} has a pod on ${this.goes}`,
      });
    } finally {
      await cluster.kubectl(["uncordon", this.stays]);
    }
  }

  /** The owner, once its application writes. */
  async owner(name: string): Promise<Owner & { readonly ip: string }> {
    // Not that of a moment: above a fence of before, the first one's number is refused.
    const atWork = async (): Promise<Owner | null> => {
      const { owner } = await this.scene.status(name);
      const writers = owner ? await this.ledger.writers(name) : [];
      return writers.some(({ uid, rows }) => uid === owner?.uid && rows >= ROWS_MIN) ? (owner ?? null) : null;
    };
    const owner = await until(atWork, STEP_MS_MAX, { what: `${name} has an owner that writes` });
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
    // A database that is set back forgets who wrote.
    const before = await ledger.writers(name);
    const known = before.map(({ uid }) => uid);
    let causedMs = await ledger.nowMs();
    const mend = await cause(owner, async () => {
      causedMs = await ledger.nowMs();
    });
    let successor: Writer;
    try {
      successor = await until(
        async () => (await ledger.writers(name)).find(({ uid }) => !known.includes(uid)),
        STEP_MS_MAX,
        { what: `${name} has another writer than ${owner.pod}` },
      );
    } finally {
      await mend?.();
    }
    // Of several that followed one another the first may have had its end before it wrote so many.
    const goesOn = ({ uid, rows }: Writer): boolean => !known.includes(uid) && rows >= ROWS_MIN;
    await until(async () => (await ledger.writers(name)).some(goesOn), STEP_MS_MAX, {
      what: `a successor of ${owner.pod} has written ${ROWS_MIN} rows`,
    });
    const { history } = await scene.status(name);
    // A job that was made anew does not know the old one's owners: its own first one then.
    const ended = history.find(({ uid }) => uid === owner.uid) ?? history.at(-1);
    const rows = [...before, ...(await ledger.writers(name))].filter(({ uid }) => uid === owner.uid);
    const from = rows.reduce((one, other) => (one.lastMs > other.lastMs ? one : other));
    const staleFromMs = Math.min(successor.firstMs, ledger.server.setBackAtMs ?? successor.firstMs);
    const [{ stale }] = (await ledger.query<{ stale: number }>(
      `SELECT count(*)::int AS stale FROM written WHERE job = $1 AND uid = ANY ($2)
       AND extract(epoch FROM pg_xact_commit_timestamp(xmin)) * 1000 > $3`,
      [name, known, staleFromMs],
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

  /** The application of this pod runs, as the API server knows: the node tells of it a moment after it has begun to write. */
  async applicationRuns(pod: string): Promise<void> {
    const { scene } = this;
    const key = { namespace: scene.namespace, name: pod };
    await until(
      async () => {
        const { status } = await scene.api.get<RawObject>(RESOURCES.pods, key);
        const [application] =
          (status as { containerStatuses?: { state?: { running?: object } }[] }).containerStatuses ?? [];
        return application?.state?.running !== undefined;
      },
      STEP_MS_MAX,
      { what: `the application of ${pod} is said to run` },
    );
  }

  /** Why the sidecar's process before the present one has ended. */
  async sidecarEnded(pod: string): Promise<string | undefined> {
    const { status } = await this.scene.api.get<RawObject>(RESOURCES.pods, {
      namespace: this.scene.namespace,
      name: pod,
    });
    type Statuses = { name: string; lastState?: { terminated?: { reason?: string } } }[];
    const { initContainerStatuses = [] } = status as { initContainerStatuses?: Statuses };
    return initContainerStatuses.find(({ name }) => name === SIDECAR_NAME)?.lastState?.terminated?.reason;
  }

  /** One candidate runs beside the owner: its sidecar, or also its application, which waits for its first connection. */
  async standbyRuns(name: string, what: "sidecar" | "application"): Promise<void> {
    const { scene } = this;
    type Statuses = { state?: { running?: object } }[];
    await until(async () => {
      const [candidate] = (await scene.status(name)).candidates;
      if (!candidate) return false;
      const pod = await scene.api.get<RawObject>(RESOURCES.pods, { namespace: scene.namespace, name: candidate.pod });
      const { initContainerStatuses = [], containerStatuses = [] } = pod.status as Record<string, Statuses>;
      const [one] = what === "sidecar" ? initContainerStatuses : containerStatuses;
      return one?.state?.running !== undefined;
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

  /** The same manifests in a namespace of the same name, which has nothing of the old one; `begins` when they are applied. */
  async makeNamespaceAnew(name: string, begins: () => Promise<void>): Promise<void> {
    const { scene } = this;
    const { spec } = await scene.api.get<RawObject>(RESOURCES.fencedJobs, { namespace: scene.namespace, name });
    await scene.cluster.kubectl(["delete", "namespace", scene.namespace]);
    await scene.cluster.kubectl(["create", "namespace", scene.namespace]);
    await begins();
    await this.putSecret();
    await scene.create(name, spec as object);
  }

  /** So that it takes no processor from the next one; nothing if it is not there. */
  async remove(name: string): Promise<void> {
    const key = { namespace: this.scene.namespace, name };
    await ifThere(this.scene.api.delete(RESOURCES.fencedJobs, key, { propagationPolicy: "Background" }));
  }
}
