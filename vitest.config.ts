import { defineConfig } from "vitest/config";

// One project per kind of test, by the file's name; `npm test` runs them in this order and counts what was skipped.
const project = (name: string, include: string[], exclude: string[] = []) => ({
  test: {
    name,
    include,
    exclude: ["node_modules/**", "dist/**", ...exclude],
    testTimeout: 60_000,
    hookTimeout: 120_000,
  },
});

const servers = ["**/*.pg.test.ts", "**/*.api.test.ts", "**/*.e2e.test.ts"];

export default defineConfig({
  test: {
    maxWorkers: 2,
    projects: [
      project("unit", ["**/*.test.ts"], servers),
      project("postgres", ["**/*.pg.test.ts"]),
      project("apiserver", ["**/*.api.test.ts"]),
      project("cluster", ["**/*.e2e.test.ts"]),
    ],
  },
});
