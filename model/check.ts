/**
 * `make model`: looks at every order of the protocol's steps within small bounds (protocol.pml, cases.ts), then takes each
 * safety line away in turn, which must show. Needs spin and gcc; says so when they are missing.
 */
import { CASES, MUTANTS } from "./cases.ts";
import { check, modelMissing } from "./spin.ts";

let [passed, failed] = [0, 0];

function tell(good: boolean, text: string): void {
  if (good) passed++;
  else failed++;
  console.log(`${good ? "ok    " : "BROKEN"} ${text}`);
}

const why = modelMissing();
if (why !== null) {
  console.error(`The model of the protocol cannot be checked: ${why}`);
  process.exit(1);
}
for (const [name, bounds] of Object.entries(CASES)) {
  const startedMs = performance.now();
  const { broken, states } = await check(bounds);
  const seconds = ((performance.now() - startedMs) / 1000).toFixed(0);
  tell(broken === null, `${name}: ${broken ?? "every invariant holds"}, ${states} states, ${seconds} s`);
}
for (const { name, define, bounds, breaks } of MUTANTS) {
  const { broken } = await check(bounds, define);
  const noticed = broken !== null && [breaks].flat().includes(broken);
  tell(noticed, `refuted: ${name}: ${broken ?? "NOT NOTICED"}${noticed ? "" : `, not ${breaks}`}`);
}
console.log(`${passed} passed, ${failed} failed`);
process.exitCode = failed > 0 ? 1 : 0;
