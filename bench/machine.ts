/** What the figures were taken on. */
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { availableParallelism, release, totalmem } from "node:os";
import { PGBENCH } from "../conformance/pgbench.ts";
import { PGBOUNCER, pgbouncerMissing } from "../testing/pgbouncer.ts";

export interface Machine {
  readonly cores: number;
  readonly processor: string;
  readonly memoryGib: number;
  readonly kernel: string;
  readonly node: string;
  readonly postgres: string;
  readonly pgbench: string;
  readonly pgbouncer: string | null;
}

export function machineFacts(): Omit<Machine, "postgres"> {
  const about = readFileSync("/proc/cpuinfo", "utf8");
  const said = (name: string): string => new RegExp(`^${name}\\s*: (.*)$`, "m").exec(about)?.[1] ?? "unknown";
  return {
    cores: availableParallelism(),
    processor: `${said("model name")}, ${Math.round(Number(said("cpu MHz")))} MHz`,
    memoryGib: Math.round(totalmem() / 2 ** 30),
    kernel: release(),
    node: process.version,
    pgbench: versionOf(PGBENCH),
    pgbouncer: pgbouncerMissing() ? null : versionOf(PGBOUNCER),
  };
}

function versionOf(program: string): string {
  const [line = ""] = execFileSync(program, ["--version"], { encoding: "utf8" }).split("\n");
  return /\d+\.\d+(\.\d+)?/.exec(line)?.[0] ?? line;
}
