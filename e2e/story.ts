/**
 * The story that the product exists for, on a real cluster: an owner is frozen in an open transaction, a successor takes
 * over and finishes, the predecessor thaws and is refused. The demo tells it, a test checks it.
 */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { parse } from "yaml";
import { type FencedJobStatus, readStatus } from "../controller/api/status.ts";
import { type KubeApi, RESOURCES } from "../controller/kube/api.ts";
import type { RawObject } from "../controller/kube/objects.ts";
import { until } from "../testing/until.ts";
import { checkout } from "./cluster/paths.ts";
import type { Cluster } from "./cluster/provider.ts";
import type { ClusterDatabase } from "./database.ts";
import { PodLog } from "./podlog.ts";

export interface StoryParts {
  readonly cluster: Cluster;
  readonly api: KubeApi;
  readonly database: ClusterDatabase;
  readonly namespace: string;
  /** Name of the example application's image in the cluster. */
  readonly appImage: string;
  /** How long the application works on each of its invoices; as long as it likes if absent. */
  readonly workMs?: number;
  /** Something happens now; `who` is a pod, the job, or empty. */
  readonly tell: (who: string, what: string) => void;
  /** A command that a person would type now, and what it answers. */
  readonly show: (command: string, answer: string) => void;
}

export interface StoryEnd {
  readonly takeoverMs: number;
  readonly leaseMs: number;
  readonly writesRefused: number;
  /** How many invoices there are, and of how many customers. */
  readonly rows: number;
  readonly customers: number;
  /** Of the predecessor, committed behind the raise's drain: what it had committed before is good work. */
  readonly staleRows: number;
  readonly commitRefusal: string;
  readonly nextWriteRefusal: string;
  readonly status: FencedJobStatus;
}

const JOB = "invoice-run";
/** A limit for what has failed; a person who watches the demo sees what it waits for. */
const STEP_MS_MAX = 120_000;

export async function playStory(parts: StoryParts): Promise<StoryEnd> {
  const { cluster, api, database, namespace, appImage, workMs, tell, show } = parts;
  const job = parse(readFileSync(join(checkout, "examples/invoice-run.yaml"), "utf8")) as RawObject;
  job.metadata.namespace = namespace;
  const spec = job.spec as {
    lease: { durationSeconds: number };
    template: { spec: { containers: { image: string; env: object[] }[] } };
  };
  for (const container of spec.template.spec.containers) {
    container.image = appImage;
    if (workMs !== undefined) container.env.push({ name: "WORK_MS", value: String(workMs) });
  }
  const key = { namespace, name: JOB };
  const status = async (): Promise<FencedJobStatus> =>
    readStatus((await api.get<RawObject>(RESOURCES.fencedJobs, key)).status);
  const owner = (generation: number): Promise<FencedJobStatus> =>
    until(async () => {
      const now = await status();
      return now.owner?.generation === generation && now.fence === generation ? now : null;
    }, STEP_MS_MAX);

  const logs: PodLog[] = [];
  const log = async (pod: string): Promise<PodLog> => {
    await until(
      async () => appStarted(await api.get<RawObject>(RESOURCES.pods, { namespace, name: pod })),
      STEP_MS_MAX,
    );
    const opened = new PodLog(cluster, namespace, pod, "app");
    logs.push(opened);
    return opened;
  };

  try {
    tell("", "kubectl apply -f examples/invoice-run.yaml");
    await cluster.kubectl(["apply", "-f", "-"], JSON.stringify(job));
    const first = await owner(1);
    const { pod: podA, uid: uidA } = first.owner as { pod: string; uid: string };
    tell(podA, `owner, generation 1; ${await fenceWords(cluster, namespace, 1)}`);
    const logA = await log(podA);
    await logA.line("transaction open", STEP_MS_MAX);
    tell(podA, "BEGIN; read the invoices; INSERT … (transaction open)");

    tell("", `-- freezing the whole pod ${podA} (application and sidecar) --`);
    const [{ at: frozenAt }] = (await database.query<{ at: Date }>("SELECT clock_timestamp() AS at")) as [{ at: Date }];
    await cluster.freeze(uidA);

    // It may be the owner before anybody has looked.
    const prepared = await until(async () => {
      const { candidates, owner } = await status();
      return candidates[0]?.pod ?? (owner?.generation === 2 ? owner.pod : null);
    }, STEP_MS_MAX);
    tell(prepared, "candidate prepared: the renewal is overdue");
    const granted = await until(async () => {
      const now = await status();
      return now.owner?.generation === 2 ? now : null;
    }, STEP_MS_MAX);
    const podB = granted.owner?.pod ?? "";
    tell(podB, `generation 2: the Lease stood unchanged for ${spec.lease.durationSeconds} s and was claimed`);
    await owner(2);
    tell(podB, await fenceWords(cluster, namespace, 2));
    const logB = await log(podB);
    await logB.line("committed", STEP_MS_MAX);
    const committed = "SELECT min(pg_xact_commit_timestamp(xmin)) AS at FROM invoice WHERE written_by = $1";
    const [{ at: firstCommitAt }] = (await database.query<{ at: Date }>(committed, [podB])) as [{ at: Date }];
    const takeoverMs = firstCommitAt.getTime() - frozenAt.getTime();
    tell(podB, `first write committed: ${(takeoverMs / 1000).toFixed(1)} s after the freeze`);
    show(`kubectl get fj -n ${namespace}`, await cluster.kubectl(["get", "fj", "-n", namespace]));
    await logB.line("run complete", STEP_MS_MAX);
    tell(podB, "run complete");

    tell("", `-- thawing ${podA} --`);
    await cluster.thaw(uidA);
    const commitRefusal = afterColon(await logA.line("COMMIT refused", STEP_MS_MAX));
    tell(podA, `COMMIT refused: ${commitRefusal}`);
    const nextWriteRefusal = afterColon(await logA.line("next write refused", STEP_MS_MAX));
    tell(podA, `next write refused: ${nextWriteRefusal}`);
    const end = await until(async () => {
      const now = await status();
      const complete = now.conditions.find(({ type }) => type === "Complete")?.status === "True";
      const counted = now.history.find(({ generation }) => generation === 1)?.rejectedWrites;
      return complete && counted ? now : null;
    }, STEP_MS_MAX);
    tell(JOB, "Complete");
    const [counts] = await database.query<{ rows: number; customers: number; stale: number }>(
      `SELECT count(*)::int AS rows, count(DISTINCT customer)::int AS customers,
              count(*) FILTER (WHERE written_by <> holder_name
                AND pg_xact_commit_timestamp(invoice.xmin) > raised_at)::int AS stale
       FROM invoice, fence.job WHERE name = $1`,
      [`${namespace}/${JOB}`],
    );
    return {
      takeoverMs,
      leaseMs: spec.lease.durationSeconds * 1000,
      writesRefused: end.history.find(({ generation }) => generation === 1)?.rejectedWrites ?? 0,
      rows: counts?.rows ?? 0,
      customers: counts?.customers ?? 0,
      staleRows: counts?.stale ?? -1,
      commitRefusal,
      nextWriteRefusal,
      status: end,
    };
  } finally {
    for (const opened of logs) await opened.stop();
  }
}

function appStarted(pod: RawObject): boolean {
  const statuses = (pod.status as { containerStatuses?: { state?: { waiting?: object } }[] } | undefined)
    ?.containerStatuses;
  return statuses?.every(({ state }) => state && !state.waiting) ?? false;
}

/** `ledger: fence 1 → 2 in 38 ms, 1 older session ended`, from the job's event. */
async function fenceWords(cluster: Cluster, namespace: string, generation: number): Promise<string> {
  return until(async () => {
    const fields = ["-o", 'jsonpath={range .items[?(@.reason=="FenceRaised")]}{.message}{"\\n"}{end}'];
    const messages = (await cluster.kubectl(["get", "events", "-n", namespace, ...fields])).split("\n");
    return messages.find((message) => message.includes(`→ ${generation} `));
  });
}

/** The reason in a line of the application's log, `time pod: what refused: reason`. */
function afterColon(line: string): string {
  return line.slice(line.indexOf("refused: ") + "refused: ".length);
}
