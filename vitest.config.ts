import { defineConfig } from "vitest/config";

// One project per kind of test, by the file's name; `npm test` runs them in this order and counts what was skipped.
const project = (name: string, include: string[], options: { exclude?: string[]; fileParallelism?: boolean } = {}) => ({
  test: {
    name,
    include,
    exclude: ["node_modules/**", "dist/**", ...(options.exclude ?? [])],
    fileParallelism: options.fileParallelism ?? true,
    // Of pure waiting: on a busy machine it costs nothing to be patient, and only what has failed takes the time.
    testTimeout: 180_000,
    hookTimeout: 300_000,
    // Node.js reads TypeScript by WebAssembly, in each thread of a wire anew. Where V8 replaces the wrapper of a call that has become
    // frequent, it now and then does not find the one before, and the whole process of a test file ends ("Check failed:
    // jit_page.has_value()", SIGTRAP; nodejs/node#64500 has another of them). No call is frequent enough now. What is shipped has neither.
    execArgv: ["--wasm-wrapper-tiering-budget=2147483647"],
    expect: { poll: { timeout: 120_000 } },
  },
});

const servers = ["**/*.pg.test.ts", "**/*.api.test.ts", "**/*.e2e.test.ts"];

export default defineConfig({
  test: {
    maxWorkers: 2,
    projects: [
      project("unit", ["**/*.test.ts"], { exclude: servers }),
      project("postgres", ["**/*.pg.test.ts"]),
      project("apiserver", ["**/*.api.test.ts"]),
      // One cluster, one release of the controller in it.
      project("cluster", ["**/*.e2e.test.ts"], { fileParallelism: false }),
    ],
  },
});
