/** What every long-running command shares: its logger. */
import { systemClock } from "../platform/clock.ts";
import { jsonLogger, type Logger } from "../platform/log.ts";

export function processLogger(component: string): Logger {
  return jsonLogger((line) => process.stderr.write(line), systemClock.wall, { component });
}
