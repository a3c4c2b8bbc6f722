/**
 * Makes `dist/`: the programs with every library inside, so that an image needs no node_modules.
 * `fencedjob.js` is the command line, `worker.js` the thread that carries the sidecar's connections, `migrations/` the SQL.
 */
import { cpSync, mkdirSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const root = join(dirname(fileURLToPath(import.meta.url)), "..");

/** Throws, naming the file and line, when a source does not compile. */
export async function bundleProgram(outdir: string): Promise<void> {
  rmSync(outdir, { recursive: true, force: true });
  mkdirSync(outdir, { recursive: true });
  await bundle({ fencedjob: "cli/fencedjob.ts", worker: "sidecar/wire/worker.ts" }, outdir);
  cpSync(join(root, "fence", "migrations"), join(outdir, "migrations"), { recursive: true });
  writeFileSync(join(outdir, "package.json"), `${JSON.stringify({ type: "module" })}\n`);
}

/** The example application as `<outdir>/app.mjs`. */
export async function bundleExample(outdir: string): Promise<void> {
  await bundle({ app: "examples/invoice-run/app.mjs" }, outdir, { ".js": ".mjs" });
}

async function bundle(entryPoints: Record<string, string>, outdir: string, outExtension = {}): Promise<void> {
  await build({
    absWorkingDir: root,
    entryPoints,
    outdir,
    outExtension,
    bundle: true,
    platform: "node",
    target: "node24",
    format: "esm",
    // The controller's client library is 17 MB of source: a sidecar that does not import it must not read it either.
    splitting: true,
    external: ["pg-native"],
    // Libraries in CommonJS ask for Node's own modules by require, which an ES module does not have.
    banner: {
      js: 'import { createRequire as nodeRequire } from "node:module"; const require = nodeRequire(import.meta.url);',
    },
    logLevel: "warning",
  });
}

if (import.meta.main) await bundleProgram(join(root, "dist"));
