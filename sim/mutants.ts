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
      from: "const podEnd = podEnded(owner, pod, lease);",
      to: 'const podEnd = podEnded(owner, snapshot.pods.find(({ phase }) => phase === "Succeeded") ?? pod, lease);',
    },
  ],
  "an application that was started early completes the job without a session (INV-9)": [
    {
      file: "controller/ownership.ts",
      from: 'return pod.phase === "Succeeded" && pod.startedEarly && !hasServed(owner, lease);',
      to: "return false;",
    },
  ],
  "the application is served before its raise (INV-4)": [
    {
      file: "sidecar/sidecar.ts",
      from: "    const raised = await raiser.raiseAll(signal);\n",
      to: "    this.#permit.open();\n    this.#serving = true;\n    this.#whenStarted.resolve();\n    await this.#listening;\n    for (const database of this.#parts.config.databases) this.#wires.of(database).serve({ identity: raiser.identity } as never);\n    const raised = await raiser.raiseAll(signal);\n",
    },
  ],
  "an owner that does not renew is never replaced (INV-11)": [
    {
      file: "controller/ownership.ts",
      from: 'return { kind: "overdue", expired: leaseRemainingMs === 0 };',
      to: 'return { kind: "overdue", expired: false };',
    },
  ],
  "a Lease too short to be renewed is renewed for ever, without a permit (INV-11)": [
    {
      file: "lease/holder.ts",
      from: "if (durationMs - timing.marginMs <= timing.renewIntervalMs) {",
      to: "if (durationMs < 0) {",
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
      file: "controller/act.ts",
      from: "if (job?.metadata.uid !== meta.uid || reserved?.uid !== grant.holder || reserved.generation !== grant.generation) {",
      to: "if (job?.metadata.uid !== meta.uid) {",
    },
    {
      file: "controller/act.ts",
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
  "a Lease that was granted for longer is taken after the time of the present spec (INV-5)": [
    { file: "lease/observe.ts", from: "Math.max(record.durationMs, specMs)", to: "specMs" },
    {
      file: "controller/ownership.ts",
      from: "return overdueSeconds === undefined ? overdueMs(timingOf(spec)) : overdueSeconds * 1000;",
      to: "return overdueMs(timingOf(spec));",
    },
  ],
  "a release compares neither holder nor generation (INV-6)": [
    {
      file: "lease/holder.ts",
      from: "if (!isOurs(readLease(answer.lease), grant)) return;",
      to: "",
    },
    { file: "lease/record.ts", from: "if (!isOurs(readLease(raw), me)) {", to: "if (raw === null) {" },
    { file: "sidecar/sidecar.ts", from: "if (!held) return;", to: "" },
  ],
  "a loss is not noticed: whatever is read is renewed (INV-6)": [
    { file: "lease/holder.ts", from: "    if (!isOurs(record, grant)) {", to: "    if (raw === null) {" },
    { file: "lease/record.ts", from: "if (!isOurs(readLease(raw), me)) {", to: "if (raw === null) {" },
  ],
  "a reservation is not conditional on the version of the status (INV-8)": [
    {
      file: "controller/reconciler.ts",
      from: "await api.update(RESOURCES.fencedJobs, { ...job, status },",
      to: "await api.update(RESOURCES.fencedJobs, { ...job, metadata: { ...job.metadata, resourceVersion: (await api.get<FencedJob & KubeObject>(RESOURCES.fencedJobs, job.metadata)).metadata.resourceVersion }, status } as FencedJob,",
    },
  ],
  "an absent pod is believed from the cache (INV-5)": [
    {
      file: "controller/gather.ts",
      from: "const pod = await ifThere(api.get<RawPod & KubeObject>(RESOURCES.pods, { namespace, name: one.pod }));\n      if (pod?.metadata.uid !== one.uid) continue;",
      to: "const pod = null as RawPod | null;\n      if (pod?.metadata.uid !== one.uid) continue;",
    },
  ],
  "a controller takes back at once what another has written over its own": [
    { file: "controller/reconciler.ts", from: "if (waitMs > 0) return", to: "if (waitMs < 0) return" },
  ],
  "a controller goes by its own wall clock": [
    {
      file: "controller/loops.ts",
      from: "const { clock, over } =",
      to: "const { clock } = options;\n  const { over } =",
    },
  ],
  "an expired Lease is believed from the cache": [
    {
      file: "controller/sight.ts",
      from: "if (owner ? this.#isHeld(record, owner, memory, spec) : record || !candidates.length) return record;",
      to: "if (record || !candidates.length) return record;",
    },
  ],
  "a living holder of an earlier FencedJob is not waited for (INV-5)": [
    {
      file: "controller/ownership.ts",
      from: "if (holder ? !isAlive(holder) : !snapshot.holderElsewhere) return true;",
      to: "if (!holder || !isAlive(holder)) return true;",
    },
  ],
  "a refusal for good is tried again for ever (INV-11)": [
    {
      file: "sidecar/raiser.ts",
      from: "const { code, hint, final } = error;",
      to: "const { code, hint } = error;\n    const final = false;",
    },
  ],
  "a pod that the database has superseded does not tell (INV-11)": [
    { file: "sidecar/sidecar.ts", from: "void this.#raiser?.superseded(one, why);", to: "" },
  ],
  "the commit of a raise is not waited for (INV-4)": [
    {
      file: "fence/move.ts",
      from: '      await client.query("COMMIT");\n',
      to: '      void client.query("COMMIT").catch(() => {});\n',
    },
  ],
  "a job has failed while its fences are open (INV-3)": [
    {
      file: "controller/closing.ts",
      from: "if (!owner && !open.length) return allClosed(draft, waiting);",
      to: "if (!owner) return allClosed(draft, waiting);",
    },
  ],
  "a deadline does not wait for the owner's end (INV-3)": [
    {
      file: "controller/ending.ts",
      from: "if (!status.owner && status.fences.every(({ closed }) => closed)) return finish(",
      to: "if (status) return finish(",
    },
  ],
  "the fence's own: a raise to an equal generation passes (INV-2)": [
    { file: "sim/database.ts", from: "if (row.generation >= generation)", to: "if (row.generation > generation)" },
  ],
  "the fence's own: who has raised before is not looked up (INV-7)": [
    { file: "sim/database.ts", from: "if (state.claims.has(holder))", to: "if (state.claims === null)" },
  ],
  "the fence's own: those inside the gate are not waited for (INV-3)": [
    {
      file: "sim/database.ts",
      from: 'if (open || other === current) await this.#lock(gate(other), "exclusive");',
      to: "void [other, open, current];",
    },
    { file: "sim/database.ts", from: "return this.endSessions(below);", to: "return below ? [] : [];" },
  ],
  "the fence's own: the older gate is left open (INV-3)": [
    {
      file: "sim/database.ts",
      from: "for (const other of state.gates.keys()) state.gates.set(other, false);",
      to: "",
    },
    { file: "sim/database.ts", from: 'throw new SqlError("LF001", "over");', to: "return;" },
  ],
  "the fence's own: the history is not compared (INV-3)": [
    {
      file: "sim/database.ts",
      from: 'if (row.incarnation !== incarnation) throw new SqlError("LF003", "another history");',
      to: "void incarnation;",
    },
  ],
  "the fence's own: another cluster's fence is raised over (INV-8)": [
    { file: "sim/database.ts", from: "if (this.isForeign(by)) throw", to: "if (this.isForeign(by) && false) throw" },
  ],
  "the fence's own: two raises go on at once (INV-1)": [
    {
      file: "sim/database.ts",
      from: 'await this.#lock("row", "exclusive");',
      to: "",
    },
  ],
};
