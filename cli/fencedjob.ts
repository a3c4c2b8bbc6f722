/** The one program. Nothing but the signals' handlers is loaded before the rest. */
import { commandHasBegun } from "./terminated.ts";

const { run } = await import("./commands.ts");
const running = run();
// Behind the first steps of the command, in which it says whether it awaits the end.
setImmediate(commandHasBegun);
await running;
