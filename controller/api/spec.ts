/**
 * `FencedJob.spec`: the one source of the CRD's schema, of the reference in docs/ and of the check in the reconciler
 * (admission may have been bypassed, so it is asserted there again).
 */
import { z } from "zod";
import type { LeaseTiming } from "../../lease/timing.ts";
import type { ObjectMeta } from "../kube/objects.ts";

export const GROUP = "fencedjob.dev";
export const VERSION = "v1alpha1";
export const API_VERSION = `${GROUP}/${VERSION}`;
export const KIND = "FencedJob";
export const PLURAL = "fencedjobs";

/** Pods are named `<job>-<attempt>` and carry the job's name as a label: 63 characters in all (E11). */
const JOB_NAME_LENGTH_MAX = 52;

/** Where the kubelet asks whether the application may start. */
export const SIDECAR_HTTP_PORT = 8433;

const seconds = (min: number, max: number) => z.int().min(min).max(max);

const leaseSpec = z
  .object({
    durationSeconds: seconds(3, 600)
      .default(10)
      .describe("How long an unchanged Lease protects its holder; a successor starts after it."),
    renewIntervalSeconds: seconds(1, 200)
      .default(3)
      .describe("From one renewal to the next; a third of the duration is usual."),
    requestTimeoutSeconds: seconds(1, 60).default(2).describe("Budget of one renewal request."),
    marginSeconds: seconds(0, 60).default(1).describe("The owner stops this much before the duration ends."),
  })
  .strict()
  .describe(
    "How ownership is kept and lost; a successor must wait for it only where nobody can know that the owner is gone.",
  );

const databaseSpec = z
  .object({
    name: z
      .string()
      .max(40)
      .regex(/^[a-z0-9]([-a-z0-9]*[a-z0-9])?$/)
      .describe("Name of the database in status, conditions and events."),
    secretName: z
      .string()
      .max(253)
      .regex(/^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$/)
      .describe(
        "Secret with `uri` or libpq's parameters (host, dbname, user, password, sslmode, …), and ca.crt; mounted into the sidecar only.",
      ),
    port: z
      .int()
      .min(1024)
      .max(65535)
      .default(5432)
      .describe(
        "Port on 127.0.0.1 where the application finds it; PGHOST and PGPORT say it if the job has one database.",
      ),
    socket: z
      .boolean()
      .default(false)
      .describe(
        "Serve it on a Unix socket as well, in a volume of all the template's containers, /var/run/fencedjob-sockets; PGHOST names it if the job has one database.",
      ),
  })
  .strict();

export const fencedJobSpec = z
  .object({
    fenceName: z
      .string()
      .min(1)
      .max(200)
      .optional()
      .describe(
        "Key of the fence in each database; default `<namespace>/<name>`. Whoever takes the work over keeps it.",
      ),
    takeOver: z
      .object({
        issuer: z.string().min(1).max(200).describe("Its name, as the condition ForeignIssuer says it."),
        generation: z
          .int()
          .min(1)
          .max(Number.MAX_SAFE_INTEGER)
          .describe("Its last generation; a later one is refused."),
      })
      .strict()
      .optional()
      .describe("Another cluster's fence of this name is taken over: its work has moved here for good."),
    suspend: z.boolean().default(false).describe("No owner and no pods while true."),
    standbys: z
      .object({
        count: z.int().min(0).max(100).default(0).describe("Candidates kept beside the owner."),
        application: z
          .enum(["NotStarted", "Started"])
          .default("NotStarted")
          .describe(
            "Started: each candidate's application runs, and its database connections are held until its pod owns the job; it must wait for its first connection.",
          ),
      })
      .strict()
      .prefault({})
      .describe("Pods that wait beside the owner, so that a takeover is quicker."),
    lease: leaseSpec.prefault({}),
    databases: z.array(databaseSpec).min(1).max(8).describe("What is protected: one fence per database."),
    drainSeconds: seconds(0, 300)
      .default(2)
      .describe("How long a takeover waits for the older generation's transactions before it ends their sessions."),
    backoffLimit: z
      .int()
      .min(0)
      .max(1000)
      .default(6)
      .describe("Consecutive failures that the job survives; with one more it is Failed."),
    activeDeadlineSeconds: seconds(1, 2 ** 31 - 1)
      .optional()
      .describe("Longest total run time, from the first owner."),
    ttlSecondsAfterFinished: seconds(0, 2 ** 31 - 1)
      .optional()
      .describe("The FencedJob is deleted so long after its end."),
    template: z
      .looseObject({ spec: z.looseObject({ containers: z.array(z.looseObject({})).min(1) }) })
      .describe("Any pod: restartPolicy Never or OnFailure runs to completion, Always is a long-running owner."),
  })
  .strict()
  .describe("What is to run, what it writes to, and when it is over.");

export type FencedJobSpec = z.infer<typeof fencedJobSpec>;

export function timingOf(spec: FencedJobSpec): LeaseTiming {
  const { durationSeconds, renewIntervalSeconds, requestTimeoutSeconds, marginSeconds } = spec.lease;
  return {
    durationMs: durationSeconds * 1000,
    renewIntervalMs: renewIntervalSeconds * 1000,
    requestTimeoutMs: requestTimeoutSeconds * 1000,
    marginMs: marginSeconds * 1000,
  };
}

/** Metadata of a stored FencedJob. */
export type JobMeta = ObjectMeta & { namespace: string; uid: string };

/** CEL rules of the CRD: what must not even be written. `readSpec` holds those about the spec alone once more. */
export const CEL_RULES = [
  {
    path: ["spec", "lease"],
    rule: "self.renewIntervalSeconds + self.requestTimeoutSeconds + self.marginSeconds < self.durationSeconds",
    message:
      "renewIntervalSeconds + requestTimeoutSeconds + marginSeconds (by default 3 + 2 + 1) must be below durationSeconds",
  },
  {
    path: ["spec", "databases"],
    rule: "self.all(a, self.exists_one(b, a.name == b.name)) && self.all(a, self.exists_one(b, a.port == b.port))",
    message: "each database needs its own name and its own port",
  },
  {
    path: ["spec", "databases"],
    rule: `self.all(d, d.port != ${SIDECAR_HTTP_PORT})`,
    message: `port ${SIDECAR_HTTP_PORT} is the sidecar's own`,
  },
  {
    path: ["spec"],
    rule: "has(self.fenceName) == has(oldSelf.fenceName) && (!has(self.fenceName) || self.fenceName == oldSelf.fenceName)",
    message: "fenceName cannot be changed: the work would meet another fence (INV-8)",
  },
  {
    path: [],
    rule: `self.metadata.name.size() <= ${JOB_NAME_LENGTH_MAX}`,
    message: `the name may have ${JOB_NAME_LENGTH_MAX} characters: pods are named <name>-<attempt>`,
  },
] as const;

export type SpecVerdict = { ok: true; spec: FencedJobSpec } | { ok: false; problems: string[] };

/** Reads a spec from the API, with defaults; every problem with its path. */
export function readSpec(raw: unknown): SpecVerdict {
  const parsed = fencedJobSpec.safeParse(raw);
  if (!parsed.success) {
    return {
      ok: false,
      problems: parsed.error.issues.map((issue) => `spec.${issue.path.join(".")}: ${issue.message}`),
    };
  }
  const { lease, databases } = parsed.data;
  const problems: string[] = [];
  if (lease.renewIntervalSeconds + lease.requestTimeoutSeconds + lease.marginSeconds >= lease.durationSeconds) {
    problems.push(`spec.lease: ${CEL_RULES[0].message}`);
  }
  const distinct = (values: readonly unknown[]): boolean => new Set(values).size === values.length;
  if (!distinct(databases.map(({ name }) => name)) || !distinct(databases.map(({ port }) => port))) {
    problems.push(`spec.databases: ${CEL_RULES[1].message}`);
  }
  if (databases.some(({ port }) => port === SIDECAR_HTTP_PORT)) {
    problems.push(`spec.databases: ${CEL_RULES[2].message}`);
  }
  return problems.length ? { ok: false, problems } : { ok: true, spec: parsed.data };
}
