/** The commands: `fencedjob controller | sidecar | proxy | db …`. */
import { Command } from "commander";
import { registerController, registerRelease } from "./controller.ts";
import { registerDb } from "./db.ts";
import { registerProxy } from "./proxy.ts";
import { registerSidecar } from "./sidecar.ts";

/** Fails with the exit code 1 and a line for people. */
export async function run(): Promise<void> {
  const program = new Command("fencedjob").description(
    "Jobs with exactly one writer: lease, generation, and a fence in PostgreSQL.",
  );
  for (const register of [registerController, registerRelease, registerSidecar, registerProxy, registerDb])
    register(program);
  try {
    await program.parseAsync();
  } catch (error) {
    process.stderr.write(`fencedjob: ${error instanceof Error ? error.message : String(error)}\n`);
    process.exitCode = 1;
  }
}
