/**
 * The safety lines of the lease protocol, each with what its removal would make of it. The simulation must find every one
 * of them broken: `node sim/mutate.ts`.
 */

export interface Mutant {
  readonly file: string;
  readonly edits: readonly (readonly [from: string, to: string])[];
}

export const MUTANTS: Readonly<Record<string, Mutant>> = {
  "the permit's deadline is counted from the answer (INV-5)": {
    file: "sidecar/holder.ts",
    edits: [["permit.extend(permitDeadlineMs(sentAtMs,", "permit.extend(permitDeadlineMs(this.#parts.clock.monoMs(),"]],
  },
  "the permit has no margin, and no bound of drift (INV-5)": {
    file: "lease/timing.ts",
    edits: [
      [
        "return sentAtMs + durationMs * (1 - CLOCK_DRIFT_MAX) - marginMs;",
        "return sentAtMs + durationMs * (1 + CLOCK_DRIFT_MAX) + marginMs;",
      ],
    ],
  },
  "the permit is not looked at (INV-5)": {
    file: "lease/permit.ts",
    edits: [['return nowMs < (this.#deadline[0] ?? 0) ? "valid" : "unconfirmed";', 'return "valid";']],
  },
  "an overdue Lease is taken without waiting (INV-5)": {
    file: "controller/ownership.ts",
    // Asked twice: before the owner is given up, and before the next one is granted.
    edits: [
      ["if (!lease || lease.holder === null || leaseRemainingMs === 0) return true;", "return true;"],
      ["expired: leaseRemainingMs === 0", "expired: true"],
    ],
  },
  "a renewal is not noticed by who waits (INV-5)": {
    file: "lease/observe.ts",
    edits: [["return previous?.fingerprint === fingerprint ? previous", "return previous ? previous"]],
  },
  "whom a record names is not compared (INV-6)": {
    file: "lease/record.ts",
    edits: [
      ["record.holder === me.holder && record.generation === me.generation", "record.generation === me.generation"],
    ],
  },
  "a restarted sidecar repeats its raise as its own (INV-7)": {
    file: "sidecar/sidecar.ts",
    edits: [
      [
        'const nonce = random.bytes(NONCE_BYTES).toString("hex");',
        'const nonce = "n".repeat(NONCE_BYTES) + random.bytes(0).toString("hex");',
      ],
    ],
  },
  "a pod that had a generation is granted another (INV-7)": {
    file: "controller/candidates.ts",
    edits: [
      [
        "if (pod.uid === snapshot.lease?.holder && pod.uid !== status.owner?.uid) {",
        "if (pod.uid === snapshot.lease?.holder && false) {",
      ],
    ],
  },
  "no generation is reserved (INV-8)": {
    file: "controller/decide.ts",
    edits: [["  status.generation += 1;\n", "  status.generation = Math.max(1, status.generation);\n"]],
  },
  "a grant is written without looking whether it is in force (INV-9)": {
    file: "controller/reconciler.ts",
    edits: [
      [
        "if (job?.metadata.uid !== meta.uid || reserved?.uid !== grant.holder || reserved.generation !== grant.generation) {",
        "if (job?.metadata.uid !== meta.uid) {",
      ],
    ],
  },
  "a grant is written over whatever the Lease has become": {
    file: "controller/reconciler.ts",
    edits: [["if ((live ? fingerprintOf(readLease(live)) : null) !== seen) {", "if (seen === undefined) {"]],
  },
  "any pod that succeeded completes the job (INV-9)": {
    file: "controller/ownership.ts",
    edits: [
      [
        "const podEnd = podEnded(owner, pod);",
        'const podEnd = podEnded(owner, snapshot.pods.find(({ phase }) => phase === "Succeeded") ?? pod);',
      ],
    ],
  },
  "the application is served before its raise (INV-4)": {
    file: "sidecar/sidecar.ts",
    edits: [
      [
        "    const raised = await this.#raiser.raiseAll(signal);\n",
        '    this.#permit.open();\n    this.#started = true;\n    await this.#listen({ database: config.databases[0]!, address: { host: "x", port: 1, database: "x", user: "x", sslmode: "disable" }, raised: { jobId: 1 } as never }, identity, this.#raiser, signal).then((wire) => this.#wires.push(wire));\n    const raised = await this.#raiser.raiseAll(signal);\n',
      ],
    ],
  },
  "an owner that does not renew is never replaced (INV-11)": {
    file: "controller/ownership.ts",
    edits: [
      ['return { kind: "overdue", expired: leaseRemainingMs === 0 };', 'return { kind: "overdue", expired: false };'],
    ],
  },
  "sessions of older generations are not ended (INV-13)": {
    file: "fence/drain.ts",
    edits: [["if (job?.will_be_raised) {", "if (job?.will_be_raised && false) {"]],
  },
};
