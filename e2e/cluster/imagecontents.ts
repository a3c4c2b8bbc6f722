/** What goes into each image: the files that its Dockerfile copies, gathered into a directory. */
import { chmodSync, copyFileSync, cpSync, mkdirSync, realpathSync, writeFileSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { rootCertificates } from "node:tls";
import { bundleExample, bundleProgram } from "../../scripts/bundle.ts";
import { build, type ProgramName, programPath } from "./build.ts";
import { run } from "./command.ts";
import { checkout } from "./paths.ts";

export type ImageName =
  | "fencedjob-pause"
  | "fencedjob-coredns"
  | "fencedjob-base"
  | "fencedjob"
  | "fencedjob-demo-postgres"
  | "fencedjob-demo-app";

interface Content {
  /** Path in the checkout. */
  readonly dockerfile: string;
  /** Image that the Dockerfile's argument BASE names. */
  readonly base?: ImageName;
  readonly stage: (dir: string) => Promise<void>;
}

export const contents: Readonly<Record<ImageName, Content>> = {
  "fencedjob-pause": { dockerfile: "images/pause/Dockerfile", stage: (dir) => stageProgram(dir, "pause") },
  "fencedjob-coredns": { dockerfile: "images/coredns/Dockerfile", stage: (dir) => stageProgram(dir, "coredns") },
  "fencedjob-base": { dockerfile: "images/base/Dockerfile", stage: stageBase },
  fencedjob: { dockerfile: "Dockerfile", base: "fencedjob-base", stage: (dir) => bundleProgram(join(dir, "dist")) },
  "fencedjob-demo-postgres": { dockerfile: "images/postgres/Dockerfile", base: "fencedjob-base", stage: stagePostgres },
  "fencedjob-demo-app": { dockerfile: "examples/invoice-run/Dockerfile", base: "fencedjob-base", stage: bundleExample },
};

async function stageProgram(dir: string, name: ProgramName): Promise<void> {
  await build([name], console.error);
  copy(programPath(name), join(dir, name));
}

async function stageBase(dir: string): Promise<void> {
  const rootfs = join(dir, "rootfs");
  const node = join(checkout, "node_modules", "node", "bin", "node");
  copy(node, join(rootfs, "nodejs", "bin", "node"));
  await copyLibraries(node, rootfs);
  text(
    join(rootfs, "etc", "passwd"),
    "root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin\n",
  );
  text(join(rootfs, "etc", "group"), "root:x:0:\nnonroot:x:65532:\n");
  text(join(rootfs, "etc", "nsswitch.conf"), "hosts: files dns\n");
  text(join(rootfs, "etc", "ssl", "certs", "ca-certificates.crt"), `${rootCertificates.join("\n")}\n`);
  mkdirSync(join(rootfs, "tmp"));
  chmodSync(join(rootfs, "tmp"), 0o1777);
  mkdirSync(join(dir, "home"));
}

async function stagePostgres(dir: string): Promise<void> {
  const rootfs = join(dir, "rootfs");
  const postgres = join(rootfs, "opt", "postgres");
  const wanted = (path: string): boolean => !path.endsWith(".a") && basename(path) !== "pkgconfig";
  cpSync(join(checkout, "node_modules", "pg18", "native"), postgres, {
    recursive: true,
    verbatimSymlinks: true,
    filter: wanted,
  });
  for (const program of ["initdb", "postgres"]) await copyLibraries(join(postgres, "bin", program), rootfs, postgres);
  // initdb starts the server through a shell.
  copy("/bin/sh", join(rootfs, "bin", "sh"));
  await copyLibraries("/bin/sh", rootfs);
  copy(join(checkout, "images", "postgres", "entrypoint.sh"), join(rootfs, "entrypoint.sh"));
  mkdirSync(join(dir, "data"));
}

/** The shared libraries that `program` loads here, at the same paths below `rootfs`; those in `except` are there already. */
async function copyLibraries(program: string, rootfs: string, except?: string): Promise<void> {
  for (const [path] of (await run(["ldd", program])).matchAll(/(?<==> |^\s*)\/\S+(?= \()/gm)) {
    if (except === undefined || !path.startsWith(`${except}/`)) copy(path, join(rootfs, path));
  }
}

function copy(from: string, to: string): void {
  mkdirSync(dirname(to), { recursive: true });
  copyFileSync(realpathSync(from), to);
}

function text(path: string, content: string): void {
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, content);
}
