/** `FencedJob.status`: what the controller has promised and observed. Only the controller writes it. */
import { z } from "zod";
import type { JobMeta } from "./spec.ts";

/** With an offset, too: the API server takes it, so an edit may have brought one. */
const time = z.iso.datetime({ offset: true }).describe("Wall time, for people.");
/** 2^53−1, in PostgreSQL and in JSON. */
export const GENERATION_MAX = Number.MAX_SAFE_INTEGER;
const generation = z.int().min(1).max(GENERATION_MAX);

const conditionSchema = z.object({
  type: z.string(),
  status: z.enum(["True", "False", "Unknown"]),
  reason: z.string(),
  message: z.string(),
  lastTransitionTime: time,
  observedGeneration: z.int(),
});

const ownerSchema = z.object({
  pod: z.string(),
  uid: z.string(),
  node: z.string().optional(),
  generation,
  since: time,
  closes: z.boolean().optional().describe("Its pod only closes the fences: no other owner is wanted."),
  leaving: z.string().optional().describe("Why its pod is being taken away, once it is."),
  overdueSeconds: z
    .int()
    .min(1)
    .optional()
    .describe("Without a renewal for so long it is overdue, by the spec that its pod was made from."),
  retries: z
    .int()
    .min(0)
    .optional()
    .describe(
      "How often its containers have been started again in place, as far as that was counted, or before it was owner.",
    ),
  leaseUID: z
    .string()
    .optional()
    .describe("The Lease that was seen to name this grant; absent while it is being written."),
});

const fenceSchema = z.object({
  database: z.string(),
  generation,
  incarnation: z.string(),
  secretName: z.string().optional().describe("Of the database, also when it has left the spec."),
  closed: z.boolean().optional().describe("No generation is let in any more, until the next one is raised."),
});

const historySchema = z.object({
  generation,
  pod: z.string(),
  uid: z.string(),
  from: time,
  until: time,
  reason: z.string(),
  rejectedWrites: z
    .int()
    .min(0)
    .describe("Writes and commits of this generation refused after its end, as its pod counted them."),
});

export const fencedJobStatus = z.object({
  observedGeneration: z.int().optional().describe("Of the spec that this status is about."),
  generation: z
    .int()
    .min(0)
    .max(Number.MAX_SAFE_INTEGER)
    .default(0)
    .describe("Highest generation ever reserved (INV-8)."),
  attempt: z.int().min(0).default(0).describe("Highest attempt whose pod name was reserved."),
  failures: z.int().min(0).default(0).describe("Consecutive failures."),
  lastFailureTime: time.optional(),
  closers: z
    .object({ failures: z.int().min(0), lastFailureTime: time.optional() })
    .optional()
    .describe("Pods that were to close the fences and failed, one after the other, since no owner is wanted."),
  startTime: time.optional().describe("When the first owner was granted."),
  failing: z
    .object({ reason: z.string(), message: z.string() })
    .optional()
    .describe("Why the job is to fail, once its pods are stopped and its fences closed."),
  completionTime: time.optional().describe("When the job was Complete or Failed; wall time, for people."),
  owner: ownerSchema.optional().describe("The grant in force: reserved here before the Lease names it."),
  candidates: z
    .array(
      z.object({
        attempt: z.int(),
        pod: z.string(),
        closes: z.boolean().optional().describe("Made to close the fences only."),
      }),
    )
    .default([])
    .describe("Pods that wait to be granted the job."),
  fence: generation.optional().describe("Lowest generation that every database accepts, for the FENCE column."),
  fences: z.array(fenceSchema).default([]).describe("What each database accepts, as the last owner told it."),
  history: z.array(historySchema).default([]).describe("The last 10 owners, newest first."),
  summary: z.string().default("").describe("For people and the STATUS column; no program may depend on it."),
  conditions: z
    .array(conditionSchema)
    .default([])
    .describe("What is known now, and why; docs/reference.md has each reason."),
});

export type Condition = z.infer<typeof conditionSchema>;
export type Owner = z.infer<typeof ownerSchema>;
export type FencedJobStatus = z.infer<typeof fencedJobStatus>;

export const HISTORY_MAX = 10;

export interface FencedJob {
  apiVersion: string;
  kind: string;
  metadata: JobMeta;
  spec: unknown;
  status?: unknown;
}

/** The status as stored, with defaults; an unreadable one (edited, restored without) starts empty: the database is the floor. */
export function readStatus(raw: unknown): FencedJobStatus {
  const parsed = fencedJobStatus.safeParse(raw ?? {});
  return parsed.success ? parsed.data : fencedJobStatus.parse({});
}
