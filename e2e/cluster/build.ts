/**
 * Builds the programs of a Kubernetes cluster from their Go modules, once per version, into the cache.
 *
 * The versions are those of `binaries/<module>/go.mod`, verified by its go.sum. Only what is missing is built. A build
 * that was interrupted leaves no program behind: each appears by a rename when it is whole.
 */
import { createHash } from "node:crypto";
import { existsSync, mkdirSync, readdirSync, readFileSync, renameSync, rmSync } from "node:fs";
import { join } from "node:path";
import { run } from "./command.ts";
import { locked } from "./daemon.ts";
import { cacheDir, checkout, pruneVersions } from "./paths.ts";
import { requireGo } from "./prerequisites.ts";

type Module = "kubernetes" | "etcd" | "helm" | "kind" | "coredns" | "pause";

interface Program {
  readonly module: Module;
  /** Go package to build, in or below the module. */
  readonly package: string;
  /** Seconds that a cold build took on two cores, for the person who waits. */
  readonly coldSeconds: number;
}

const kubernetes = (name: string, coldSeconds: number): Program => ({
  module: "kubernetes",
  package: `k8s.io/kubernetes/cmd/${name}`,
  coldSeconds,
});

const programs = {
  etcd: { module: "etcd", package: "go.etcd.io/etcd/server/v3", coldSeconds: 45 },
  "kube-apiserver": kubernetes("kube-apiserver", 200),
  kubectl: kubernetes("kubectl", 20),
  "kube-controller-manager": kubernetes("kube-controller-manager", 50),
  "kube-scheduler": kubernetes("kube-scheduler", 5),
  kubelet: kubernetes("kubelet", 15),
  "kube-proxy": kubernetes("kube-proxy", 5),
  coredns: { module: "coredns", package: ".", coldSeconds: 20 },
  pause: { module: "pause", package: ".", coldSeconds: 1 },
  kind: { module: "kind", package: "sigs.k8s.io/kind", coldSeconds: 15 },
  helm: { module: "helm", package: "helm.sh/helm/v4/cmd/helm", coldSeconds: 110 },
} as const satisfies Record<string, Program>;

export type ProgramName = keyof typeof programs;

export const programNames = Object.keys(programs) as readonly ProgramName[];

/** What a test API server needs. */
export const apiServerPrograms = ["etcd", "kube-apiserver", "kubectl"] as const satisfies readonly ProgramName[];

/** `v1.36.3`, from the go.mod that pins it. */
export function kubernetesVersion(): string {
  const found = /^\s*(?:require )?k8s\.io\/kubernetes (v\S+)/m.exec(
    readFileSync(join(moduleDir("kubernetes"), "go.mod"), "utf8"),
  );
  if (!found?.[1]) throw new Error("binaries/kubernetes/go.mod does not require k8s.io/kubernetes");
  return found[1];
}

/** Path of the program, whether it is built already or not. */
export function programPath(name: ProgramName): string {
  const program: Program = programs[name];
  const inputs = createHash("sha256").update(JSON.stringify([process.arch, program.package, flags(program)]));
  const dir = moduleDir(program.module);
  for (const file of readdirSync(dir).sort()) inputs.update(file).update(readFileSync(join(dir, file)));
  return join(cacheDir(), "bin", `${name}-${inputs.digest("hex").slice(0, 12)}`, name);
}

/** Builds those of `names` that are missing, one after the other (a Go build takes all cores itself), and says so to `say`. */
export async function build(names: readonly ProgramName[], say: (line: string) => void): Promise<void> {
  const isMissing = (name: ProgramName): boolean => !existsSync(programPath(name));
  if (!names.some(isMissing)) return;
  await locked(cacheDir(), "build", say, () => buildMissing(names.filter(isMissing), say));
}

async function buildMissing(missing: readonly ProgramName[], say: (line: string) => void): Promise<void> {
  if (missing.length === 0) return;
  await requireGo(missing.join(", "));
  const coldSeconds = missing.reduce((sum, name) => sum + programs[name].coldSeconds, 0);
  say(`building ${missing.join(", ")} from Go modules: once, about ${coldSeconds} s if nothing is cached`);
  for (const name of missing) {
    const startedMs = performance.now();
    await buildOne(name);
    say(`built ${name} in ${((performance.now() - startedMs) / 1000).toFixed(1)} s`);
  }
}

async function buildOne(name: ProgramName): Promise<void> {
  const program: Program = programs[name];
  const target = programPath(name);
  const unfinished = `${target}.${process.pid}`;
  mkdirSync(join(target, ".."), { recursive: true });
  try {
    await run(["go", "build", ...flags(program), "-o", unfinished, program.package], {
      cwd: moduleDir(program.module),
      env: { CGO_ENABLED: "0" }, // static: the same program runs on the host and in an image made from scratch
    });
    renameSync(unfinished, target);
    pruneVersions(join(cacheDir(), "bin"), name);
  } finally {
    rmSync(unfinished, { force: true });
  }
}

function flags(program: Program): readonly string[] {
  const linker = ["-s", "-w"];
  if (program.module === "kubernetes") {
    const version = kubernetesVersion();
    const [major = "", minor = ""] = version.slice(1).split(".");
    for (const owner of ["k8s.io/component-base/version", "k8s.io/client-go/pkg/version"]) {
      linker.push(`-X ${owner}.gitVersion=${version} -X ${owner}.gitMajor=${major} -X ${owner}.gitMinor=${minor}`);
    }
  }
  return ["-mod=readonly", "-trimpath", "-ldflags", linker.join(" ")];
}

function moduleDir(module: Module): string {
  return join(checkout, "e2e", "cluster", "binaries", module);
}

if (import.meta.main) {
  const asked = process.argv.slice(2);
  const unknown = asked.filter((name) => !(name in programs));
  if (unknown.length > 0) {
    console.error(`unknown: ${unknown.join(", ")}. Known: ${programNames.join(", ")}. Nothing was built.`);
    process.exit(2);
  }
  const names = asked.length > 0 ? (asked as ProgramName[]) : programNames;
  try {
    await build(names, console.error);
    for (const name of names) console.log(programPath(name));
  } catch (error) {
    console.error(error instanceof Error ? error.message : error);
    process.exitCode = 1;
  }
}
