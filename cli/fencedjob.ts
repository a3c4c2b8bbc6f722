/** The one program: `fencedjob controller | sidecar | proxy | db …`. */
import { Command } from "commander";
import { registerController, registerRelease } from "./controller.ts";
import { registerDb } from "./db.ts";
import { registerProxy } from "./proxy.ts";
import { registerSidecar } from "./sidecar.ts";

const program = new Command("fencedjob").description(
  "Jobs with exactly one writer: lease, generation, and a fence in PostgreSQL.",
);
registerController(program);
registerRelease(program);
registerSidecar(program);
registerProxy(program);
registerDb(program);

try {
  await program.parseAsync();
} catch (error) {
  process.stderr.write(`fencedjob: ${error instanceof Error ? error.message : String(error)}\n`);
  process.exitCode = 1;
}
