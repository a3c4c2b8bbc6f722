/** Holds the table of the design's section 5: which folder may import which. */
import { readdirSync, readFileSync } from "node:fs";
import { dirname, join, relative } from "node:path";
import { fileURLToPath } from "node:url";

const root = join(dirname(fileURLToPath(import.meta.url)), "..");

const MAY_IMPORT: Readonly<Record<string, readonly string[]>> = {
  platform: [],
  lease: ["platform"],
  fence: ["platform"],
  controller: ["lease", "platform"],
  sidecar: ["lease", "fence", "platform"],
};
/** For tests only, beside the above. */
const TESTS_MAY_IMPORT = ["testing"];
/** The Kubernetes client library costs 80 MiB: only the controller's configuration loads it, and only outside a cluster. */
const LIBRARY = "@kubernetes/client-node";
const LIBRARY_FILE = "controller/kube/config.ts";

const problems: string[] = [];
for (const [folder, allowed] of Object.entries(MAY_IMPORT)) {
  for (const entry of readdirSync(join(root, folder), { recursive: true, encoding: "utf8" })) {
    if (entry.endsWith(".ts")) check(`${folder}/${entry}`, [folder, ...allowed]);
  }
}
for (const problem of problems) console.error(problem);
process.exitCode = problems.length ? 1 : 0;

function check(file: string, allowed: readonly string[]): void {
  const isTest = /\.test\.ts$/.test(file);
  const source = readFileSync(join(root, file), "utf8");
  for (const [, target = ""] of source.matchAll(/(?:from|import)\s*\(?\s*"([^"]+)"/g)) {
    if (target === LIBRARY && file !== LIBRARY_FILE)
      problems.push(`${file} imports ${LIBRARY}: only ${LIBRARY_FILE} may`);
    if (!target.startsWith(".")) continue;
    const [folder = ""] = relative(root, join(root, dirname(file), target)).split("/");
    if (allowed.includes(folder) || (isTest && TESTS_MAY_IMPORT.includes(folder))) continue;
    problems.push(`${file} imports ${target}: ${allowed[0]}/ may import ${allowed.slice(1).join(", ") || "nothing"}`);
  }
}
