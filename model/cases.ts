/** What is checked, and each safety line whose removal must be refuted. */
import type { Bounds } from "./spin.ts";

/** Each looks at what the others leave out, so that all of them together stay small. */
export const CASES: Readonly<Record<string, Bounds>> = {
  "two controllers, the Lease deleted": { pods: 2, controllers: 2, deletions: 1 },
  "two controllers, a sidecar restarted": { pods: 2, controllers: 2, restarts: 1 },
  "any Lease at any time, three pods": { pods: 3, lawless: true },
  "any Lease at any time, restarts, answers lost, the database restored": {
    pods: 2,
    lawless: true,
    restarts: 1,
    losses: 1,
    restores: 1,
  },
  "the job ends, whatever befalls one of two pods": { pods: 2, controllers: 1, live: true, restarts: 1, losses: 1 },
};

export interface Mutant {
  readonly name: string;
  readonly define: string;
  readonly bounds: Bounds;
  /** What it must break: this, or one of these. */
  readonly breaks: string | readonly string[];
}

const controllers: Bounds = { pods: 2, controllers: 2, deletions: 1 };
const lawless: Bounds = { pods: 2, lawless: true };

export const MUTANTS: readonly Mutant[] = [
  { name: "no generation is reserved", define: "NOT_RESERVED", bounds: controllers, breaks: "INV_8_never_reissued" },
  {
    name: "a reservation is not conditional on the version",
    define: "RESERVED_BLINDLY",
    bounds: controllers,
    breaks: "INV_2_one_holder_per_generation",
  },
  {
    name: "a grant is not conditional on the version",
    define: "GRANTED_BLINDLY",
    bounds: controllers,
    breaks: "INV_9_an_old_grant_replaces_nobody",
  },
  {
    name: "a pod is granted again",
    define: "POD_GRANTED_AGAIN",
    bounds: controllers,
    breaks: "INV_7_one_pod_one_generation",
  },
  {
    name: "any pod that has succeeded completes the job",
    define: "ANY_POD_COMPLETES",
    bounds: controllers,
    breaks: "INV_9_only_the_owner_in_force_completes",
  },
  {
    name: "a release compares neither holder nor generation",
    define: "RELEASED_BLINDLY",
    bounds: controllers,
    breaks: "INV_6_match_to_touch",
  },
  {
    name: "a raise to an equal generation passes",
    define: "EQUAL_IS_ENOUGH",
    bounds: lawless,
    breaks: "INV_2_one_holder_per_generation",
  },
  {
    name: "a raise does not compare the fence",
    define: "FENCE_NOT_COMPARED",
    bounds: lawless,
    // Whichever is met first: an equal number, or a lower one.
    breaks: ["INV_1_the_fence_only_grows", "INV_2_one_holder_per_generation"],
  },
  {
    name: "a raise does not read the claims",
    define: "CLAIMS_NOT_READ",
    bounds: { ...lawless, restarts: 1 },
    breaks: "INV_7_one_pod_one_generation",
  },
  {
    name: "a raise does not wait at the gate",
    define: "GATE_NOT_AWAITED",
    bounds: lawless,
    breaks: "INV_3_no_stale_commit",
  },
  { name: "any later gate will do", define: "ANY_OPEN_GATE", bounds: lawless, breaks: "INV_3_no_stale_commit" },
  {
    name: "an admission does not compare the history",
    define: "HISTORY_NOT_COMPARED",
    bounds: { ...lawless, restores: 1 },
    breaks: "INV_3_no_stale_commit",
  },
  {
    name: "the application is served before the raise",
    define: "SERVED_BEFORE_RAISE",
    bounds: lawless,
    breaks: "INV_4_raise_before_read",
  },
  {
    name: "a raise ends nobody's sessions",
    define: "NOBODY_ENDED",
    bounds: { pods: 2, controllers: 1, live: true, restarts: 1 },
    breaks: "INV_11_unfinished_work_is_noticed",
  },
  {
    name: "an owner that is over is not replaced",
    define: "NEVER_REPLACED",
    bounds: { pods: 2, controllers: 1, live: true, restarts: 1 },
    breaks: "INV_11_unfinished_work_is_noticed",
  },
];
