/**
 * The safety lines of the lease protocol, each with what its removal would make of it. The simulation must find every one
 * of them broken: `node sim/mutate.ts`.
 */

export interface Edit {
  readonly file: string;
  readonly from: string;
  readonly to: string;
}

/** More than one edit: lines that stand for each other, of which either is enough. */
export const MUTANTS: Readonly<Record<string, readonly Edit[]>> = {
  "the permit's deadline is counted from the answer (INV-5)": [
    {
      file: "lease/holder.ts",
      from: "permit.extend(permitDeadlineMs(sentAtMs,",
      to: "permit.extend(permitDeadlineMs(this.#parts.clock.monoMs(),",
    },
  ],
  "the permit has no margin, and no bound of drift (INV-5)": [
    {
      file: "lease/timing.ts",
      from: "return sentAtMs + durationMs * (1 - CLOCK_DRIFT_MAX) - marginMs;",
      to: "return sentAtMs + durationMs * (1 + CLOCK_DRIFT_MAX) + marginMs;",
    },
  ],
  "the permit is not looked at (INV-5)": [
    {
      file: "lease/permit.ts",
      from: 'return nowMs < (this.#deadline[0] ?? 0) ? "valid" : "unconfirmed";',
      to: 'return "valid";',
    },
  ],
  "an overdue Lease is taken without waiting (INV-5)": [
    {
      file: "controller/ownership.ts",
      from: "if (!lease || lease.holder === null || leaseRemainingMs === 0) return true;",
      to: "return true;",
    },
    { file: "controller/ownership.ts", from: "expired: leaseRemainingMs === 0", to: "expired: true" },
  ],
  "a renewal is not noticed by who waits (INV-5)": [
    {
      file: "lease/observe.ts",
      from: "return previous?.fingerprint === fingerprint ? previous",
      to: "return previous ? previous",
    },
  ],
  "whom a record names is not compared (INV-6)": [
    {
      file: "lease/record.ts",
      from: "record.holder === me.holder && record.generation === me.generation",
      to: "record.generation === me.generation",
    },
  ],
  "a pod that had a generation is granted another (INV-7)": [
    {
      file: "controller/candidates.ts",
      from: "if (pod.uid === snapshot.lease?.holder && pod.uid !== status.owner?.uid) {",
      to: "if (pod.uid === snapshot.lease?.holder && false) {",
    },
  ],
  "no generation is reserved (INV-8)": [
    {
      file: "controller/holding.ts",
      from: "  status.generation = Math.min(status.generation + 1, GENERATION_MAX);\n",
      to: "  status.generation = Math.max(1, status.generation);\n",
    },
  ],
  "any pod that succeeded completes the job (INV-9)": [
    {
      file: "controller/ownership.ts",
      from: "const podEnd = podEnded(owner, pod);",
      to: 'const podEnd = podEnded(owner, snapshot.pods.find(({ phase }) => phase === "Succeeded") ?? pod);',
    },
  ],
  "the application is served before its raise (INV-4)": [
    {
      file: "sidecar/sidecar.ts",
      from: "    const raised = await raiser.raiseAll(signal);\n",
      to: '    this.#permit.open();\n    this.#started = true;\n    await this.#listen({ database: this.#parts.config.databases[0]!, address: { host: "x", port: 1, database: "x", user: "x", sslmode: "disable" }, raised: { jobId: 1 } as never }, identity, raiser, signal).then((wire) => this.#wires.push(wire));\n    const raised = await raiser.raiseAll(signal);\n',
    },
  ],
  "an owner that does not renew is never replaced (INV-11)": [
    {
      file: "controller/ownership.ts",
      from: 'return { kind: "overdue", expired: leaseRemainingMs === 0 };',
      to: 'return { kind: "overdue", expired: false };',
    },
  ],
  "sessions of older generations are not ended (INV-13)": [
    { file: "fence/drain.ts", from: "if (job?.may) {", to: "if (job?.may && false) {" },
  ],
  "a restarted sidecar raises again: its nonce is the same, and it does not look at what the Lease says (INV-7)": [
    {
      file: "sidecar/sidecar.ts",
      from: 'const nonce = random.bytes(NONCE_BYTES).toString("hex");',
      to: 'const nonce = "n".repeat(NONCE_BYTES) + random.bytes(0).toString("hex");',
    },
    { file: "sidecar/raiser.ts", from: "if (this.#fences.size > 0) return this.#raisedBefore();", to: "" },
  ],
  "a grant is written over whatever the Lease has become, without looking whether it is in force (INV-9)": [
    {
      file: "controller/reconciler.ts",
      from: "if (job?.metadata.uid !== meta.uid || reserved?.uid !== grant.holder || reserved.generation !== grant.generation) {",
      to: "if (job?.metadata.uid !== meta.uid) {",
    },
    {
      file: "controller/reconciler.ts",
      from: "if ((live ? fingerprintOf(readLease(live)) : null) !== seen) {",
      to: "if (seen === undefined) {",
    },
  ],
  "a controller is elected without waiting (INV-5)": [
    {
      file: "lease/campaign.ts",
      from: "this.#isFree(record) ? 0 : remainingMs(this.#seen, record, timing.durationMs, nowMs);",
      to: "0;",
    },
  ],
  "a controller that leads does not look at its permit (INV-5)": [
    {
      file: "lease/election.ts",
      from: 'valid: () => !ended.signal.aborted && permit.state(clock.monoMs()) === "valid",',
      to: "valid: () => !ended.signal.aborted,",
    },
  ],
  "a controller's election has a generation that was there before (INV-8)": [
    {
      file: "lease/campaign.ts",
      from: "const next = this.#highest + 1;",
      to: "const next = Math.max(1, this.#highest);",
    },
  ],
};
