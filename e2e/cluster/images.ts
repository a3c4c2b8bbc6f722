/**
 * Container images without a registry: built from this checkout by a Docker engine or by buildah, kept in the cache as
 * archives. The tag is the hash of everything that went in: an image is built again only when an input changed.
 */
import { createHash, type Hash } from "node:crypto";
import {
  existsSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  renameSync,
  rmSync,
  utimesSync,
} from "node:fs";
import { join } from "node:path";
import { run } from "./command.ts";
import { locked } from "./daemon.ts";
import { contents, type ImageName } from "./imagecontents.ts";
import { cacheDir, checkout, pruneVersions } from "./paths.ts";
import { dockerAnswers } from "./prerequisites.ts";

export interface Image {
  readonly name: ImageName;
  /** What a pod names as its image; never pulled (`imagePullPolicy: Never` or `IfNotPresent`). */
  readonly ref: string;
  /** `docker save` format. */
  readonly archive: string;
}

/** The image as the checkout is now. */
export async function image(name: ImageName, say: (line: string) => void): Promise<Image> {
  const content = contents[name];
  const base = content.base === undefined ? undefined : await image(content.base, say);
  const archives = join(cacheDir(), "images");
  mkdirSync(archives, { recursive: true });
  const context = mkdtempSync(join(archives, ".context-"));
  try {
    await content.stage(context);
    const dockerfile = join(checkout, content.dockerfile);
    const inputs = createHash("sha256")
      .update(base?.ref ?? "")
      .update(readFileSync(dockerfile));
    hashTree(inputs, context, "");
    const tag = inputs.digest("hex").slice(0, 12);
    const built: Image = { name, ref: `localhost/${name}:${tag}`, archive: join(archives, `${name}-${tag}.tar`) };
    if (!existsSync(built.archive)) {
      await locked(cacheDir(), "images", say, async () => {
        if (existsSync(built.archive)) return; // by whoever had the lock before
        const startedMs = performance.now();
        await buildArchive(built, context, dockerfile, base);
        say(`built image ${built.ref} in ${((performance.now() - startedMs) / 1000).toFixed(1)} s`);
      });
    }
    const now = new Date();
    utimesSync(built.archive, now, now);
    pruneVersions(archives, name);
    return built;
  } finally {
    rmSync(context, { recursive: true, force: true });
  }
}

async function buildArchive(built: Image, context: string, dockerfile: string, base: Image | undefined): Promise<void> {
  const unfinished = `${built.archive}.${process.pid}`;
  const options = [
    "-t",
    built.ref,
    "-f",
    dockerfile,
    "--build-arg",
    "DIST=prebuilt",
    ...(base ? ["--build-arg", `BASE=${base.ref}`] : []),
  ];
  try {
    if (await dockerAnswers()) {
      if (base) await run(["docker", "load", "-q", "-i", base.archive]);
      await run(["docker", "build", "-q", ...options, context]);
      await run(["docker", "save", "-o", unfinished, built.ref]);
    } else {
      const buildah = [
        "buildah",
        "--root",
        join(cacheDir(), "buildah"),
        "--runroot",
        join(cacheDir(), "buildah-run"),
        "--storage-driver",
        "vfs",
      ];
      if (base) await run([...buildah, "pull", "-q", `docker-archive:${base.archive}`]);
      await run([...buildah, "build", "-q", "--pull=never", "--format=docker", ...options, context]);
      await run([...buildah, "push", "-q", built.ref, `docker-archive:${unfinished}:${built.ref}`]);
      // The archive is the result. What stays in the store is a copy of each file per layer.
      await run([...buildah, "rmi", "--all", "--force"]);
    }
    renameSync(unfinished, built.archive);
  } finally {
    rmSync(unfinished, { force: true });
  }
}

/** Names, modes and contents, not times. */
function hashTree(hash: Hash, dir: string, below: string): void {
  for (const entry of readdirSync(join(dir, below)).sort()) {
    const path = join(dir, below, entry);
    const found = lstatSync(path);
    hash.update(`\0${join(below, entry)}\0${found.mode}\0`);
    if (found.isSymbolicLink()) hash.update(readlinkSync(path));
    else if (found.isDirectory()) hashTree(hash, dir, join(below, entry));
    else hash.update(readFileSync(path));
  }
}
