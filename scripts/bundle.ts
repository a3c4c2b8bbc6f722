/**
 * Makes `dist/`: one file per program, with every library inside, so that an image needs no node_modules.
 * `dist/fencedjob.js` is the command line, `dist/worker.js` the thread that carries the sidecar's connections, and
 * `dist/examples/` the example application.
 */
import { rmSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const root = join(dirname(fileURLToPath(import.meta.url)), "..");

/** Throws, naming the file and line, when a source does not compile. */
export async function bundle(): Promise<void> {
  rmSync(join(root, "dist"), { recursive: true, force: true });
  await bundleInto("dist", { fencedjob: "cli/fencedjob.ts", worker: "sidecar/wire/worker.ts" }, ".js");
  await bundleInto("dist/examples", { "invoice-run": "examples/invoice-run/app.mjs" }, ".mjs");
}

async function bundleInto(
  outdir: string,
  entryPoints: Record<string, string>,
  extension: ".js" | ".mjs",
): Promise<void> {
  await build({
    absWorkingDir: root,
    entryPoints,
    outdir,
    outExtension: { ".js": extension },
    bundle: true,
    platform: "node",
    target: "node24",
    format: "esm",
    external: ["pg-native"],
    sourcemap: extension === ".js" ? "linked" : false,
    // Libraries in CommonJS ask for Node's own modules by require, which an ES module does not have.
    banner: {
      js: 'import { createRequire as nodeRequire } from "node:module"; const require = nodeRequire(import.meta.url);',
    },
    logLevel: "warning",
  });
}

if (import.meta.main) await bundle();
