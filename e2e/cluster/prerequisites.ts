/** Names what is missing before anything is changed, with the command that installs it. */
import { accessSync, constants, existsSync } from "node:fs";
import { delimiter, join } from "node:path";
import { run, succeeds } from "./command.ts";

export class MissingPrerequisites extends Error {
  override readonly name = "MissingPrerequisites";
}

const GO_MINOR_MIN = 26;

/** Debian package → how to see that it is there. */
const packages: Readonly<Record<string, () => boolean>> = {
  containerd: () => onPath("containerd") && onPath("ctr"),
  runc: () => onPath("runc"),
  "containernetworking-plugins": () => cniBinDir() !== undefined,
  iptables: () => onPath("iptables"),
  iproute2: () => onPath("ip"),
  procps: () => onPath("sysctl"),
  openssl: () => onPath("openssl"),
  buildah: () => onPath("buildah"),
};

/** Directory of the network plugins: Debian's, else the one of the upstream archives. */
export function cniBinDir(): string | undefined {
  return ["/usr/lib/cni", "/opt/cni/bin"].find(
    (dir) => existsSync(join(dir, "bridge")) && existsSync(join(dir, "host-local")),
  );
}

export function onPath(program: string): boolean {
  return (process.env.PATH ?? "").split(delimiter).some((dir) => {
    try {
      accessSync(join(dir, program), constants.X_OK);
      return dir !== "";
    } catch {
      return false;
    }
  });
}

export const dockerAnswers = (): Promise<boolean> =>
  onPath("docker") ? succeeds(["docker", "info"], { timeoutMs: 10_000 }) : Promise.resolve(false);

/** `1.26`, or undefined where there is no Go. */
export async function goVersion(): Promise<string | undefined> {
  if (!onPath("go")) return undefined;
  return /go(\d+\.\d+)/.exec(await run(["go", "version"]))?.[1];
}

const goName = (version: string | undefined): string => (version === undefined ? "no Go" : `Go ${version}`);

export const goIsEnough = (version: string | undefined): boolean => {
  const [major = 0, minor = 0] = (version ?? "").split(".").map(Number);
  return major > 1 || (major === 1 && minor >= GO_MINOR_MIN);
};

/** Which cluster this machine can have; throws MissingPrerequisites when none. */
export async function chooseProvider(what: string): Promise<"existing" | "kind" | "local"> {
  if (process.env.FENCEDJOB_USE_CLUSTER === "1") {
    if (process.env.KUBECONFIG) return "existing";
    throw new MissingPrerequisites(
      `FENCEDJOB_USE_CLUSTER=1 asks for an existing cluster, but KUBECONFIG names none. Nothing was changed.`,
    );
  }
  if (await dockerAnswers()) return "kind";
  await requireLocalNode(what);
  return "local";
}

/** Throws MissingPrerequisites unless this machine can have the local node. */
export async function requireLocalNode(what: string): Promise<void> {
  const root = process.platform === "linux" && process.getuid?.() === 0;
  const go = await goVersion();
  if (!root || !goIsEnough(go)) throw new MissingPrerequisites(explain({ what, root, go }));
}

/** Throws MissingPrerequisites unless Go can build `what`. */
export async function requireGo(what: string): Promise<void> {
  const go = await goVersion();
  if (goIsEnough(go)) return;
  throw new MissingPrerequisites(
    `Building ${what} needs Go ≥ 1.${GO_MINOR_MIN}. Found: ${goName(go)}. Install Go: https://go.dev/dl, and run this again. Nothing was changed.`,
  );
}

/** The message for a machine that can have no cluster. Pure. */
export function explain(found: { what: string; root: boolean; go: string | undefined }): string {
  const steps = [
    ...(goIsEnough(found.go) ? [] : ["install Go: https://go.dev/dl"]),
    ...(found.root ? [] : ["become root on Linux"]),
  ].join(" and ");
  const advice = steps.charAt(0).toUpperCase() + steps.slice(1);
  return [
    `${found.what} needs one of: a Docker engine (for kind), or root on Linux and Go ≥ 1.${GO_MINOR_MIN} (for the local node), or KUBECONFIG with FENCEDJOB_USE_CLUSTER=1.`,
    `Found: no Docker engine, ${found.root ? "root" : "not root"}, ${goName(found.go)}. ${advice}, or start Docker, and run ${found.what} again. Nothing was changed.`,
  ].join("\n");
}

/** Installs the Debian packages that the local node lacks, saying so; elsewhere names them. */
export async function installPackages(say: (line: string) => void): Promise<void> {
  const missing = Object.keys(packages).filter((name) => !packages[name]?.());
  if (missing.length === 0) return;
  const command = ["apt-get", "install", "-y", "--no-install-recommends", ...missing];
  if (!onPath("apt-get")) {
    throw new MissingPrerequisites(
      `The local node needs ${missing.join(", ")} (names of the Debian packages). Install them and run it again. Nothing was changed.`,
    );
  }
  say(`installing Debian packages: ${command.join(" ")}`);
  const env = { DEBIAN_FRONTEND: "noninteractive" };
  await run(command, { env }).catch(async () => {
    await run(["apt-get", "update"]);
    await run(command, { env });
  });
}
