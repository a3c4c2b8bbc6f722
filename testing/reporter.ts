/** A vitest reporter that writes what `make test` sums up: counts, and each skipped test with its reason. */
import { writeFileSync } from "node:fs";
import type { Reporter, TestModule } from "vitest/node";

export interface Counts {
  passed: number;
  failed: number;
  skipped: { name: string; why: string }[];
}

export default class CountsReporter implements Reporter {
  onTestRunEnd(modules: readonly TestModule[], errors: readonly unknown[]): void {
    const counts: Counts = { passed: 0, failed: errors.length, skipped: [] };
    for (const module of modules) {
      let tests = 0;
      for (const test of module.children.allTests()) {
        tests++;
        const result = test.result();
        if (result.state === "passed") counts.passed++;
        else if (result.state === "failed") counts.failed++;
        else {
          const why = result.state === "skipped" ? result.note : undefined;
          counts.skipped.push({ name: test.fullName, why: why ?? "no reason given" });
        }
      }
      // A file that cannot even be loaded has no tests.
      if (tests === 0 && module.state() === "failed") counts.failed++;
    }
    const path = process.env.FENCEDJOB_TEST_COUNTS;
    if (path) writeFileSync(path, JSON.stringify(counts));
  }
}
