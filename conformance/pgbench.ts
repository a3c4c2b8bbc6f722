/** pgbench as a client: its three protocols, and pipelines of many statements, errors inside them included. */
import { existsSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type Arena, environmentOf, onEachSide, type Side } from "./arena.ts";
import { command } from "./command.ts";
import type { Outcomes, Sides } from "./results.ts";

export const PGBENCH = "/usr/bin/pgbench";
const PROTOCOLS = ["simple", "extended", "prepared"] as const;
const CLIENTS = 4;
const TRANSACTIONS_EACH = 50;
const RUN_MS_MAX = 60_000;

const TABLES = ["CREATE TABLE hit (client int, n int, note text)", "CREATE TABLE once (k int PRIMARY KEY)"];

/** By name; those with pipelines need the extended protocol. */
const scripts: Readonly<Record<string, { readonly pipeline: boolean; readonly text: string }>> = {
  "autocommit writes": {
    pipeline: false,
    text: "INSERT INTO hit VALUES (:client_id, 1, 'a');\nSELECT count(*) > 0 FROM hit;\n",
  },
  "a block": {
    pipeline: false,
    text: "BEGIN;\nINSERT INTO hit VALUES (:client_id, 2, 'b');\nUPDATE hit SET n = n + 1 WHERE client = :client_id AND n = 2;\nEND;\n",
  },
  "a pipeline of one group": {
    pipeline: true,
    text: `\\startpipeline\n${"INSERT INTO hit VALUES (:client_id, 3, 'c');\n".repeat(20)}\\endpipeline\n`,
  },
  "a pipeline with a block": {
    pipeline: true,
    text: "\\startpipeline\nBEGIN;\nINSERT INTO hit VALUES (:client_id, 4, 'd');\nSELECT count(*) FROM once;\nCOMMIT;\n\\endpipeline\n",
  },
  "a pipeline of reads and writes": {
    pipeline: true,
    text: `\\startpipeline\n${"SELECT 1;\nINSERT INTO hit VALUES (:client_id, 5, 'e');\nSELECT :client_id + 1;\n".repeat(10)}\\endpipeline\n`,
  },
  "a pipeline that fails in the middle": {
    pipeline: true,
    text: "\\startpipeline\nINSERT INTO hit VALUES (:client_id, 6, 'f');\nINSERT INTO once VALUES (1), (1);\nINSERT INTO hit VALUES (:client_id, 7, 'g');\n\\endpipeline\n",
  },
  "results of a pipeline in variables": {
    pipeline: false,
    text: "SELECT 41 + 1 AS answer \\gset\nINSERT INTO hit VALUES (:client_id, :answer, 'h');\n",
  },
};

export const pgbenchMissing = (): string | null =>
  existsSync(PGBENCH) ? null : "pgbench is not installed (Debian: postgresql-contrib)";

export async function runPgbench(arena: Arena): Promise<Sides> {
  const scratch = mkdtempSync(join(tmpdir(), "fencedjob-pgbench-"));
  try {
    return await onEachSide(arena, (side) => runSide(arena, side, scratch));
  } finally {
    rmSync(scratch, { recursive: true, force: true });
  }
}

async function runSide(arena: Arena, side: Side, scratch: string): Promise<Outcomes> {
  const outcomes = new Map<string, string>();
  for (const [name, { pipeline, text }] of Object.entries(scripts)) {
    const file = join(scratch, "script.sql");
    writeFileSync(file, text);
    for (const protocol of PROTOCOLS.filter((one) => !pipeline || one !== "simple")) {
      await arena.reset();
      for (const sql of TABLES) await arena.admin.query(`SET ROLE ${side.user}; ${sql}; RESET ROLE`);
      outcomes.set(`${name}, ${protocol}`, await runOnce(arena, side, ["-M", protocol, "-f", file]));
    }
  }
  await arena.reset();
  outcomes.set("pgbench -i", await runOnce(arena, side, ["-i", "-I", "dtgvpf", "-q"], false));
  for (const protocol of PROTOCOLS)
    outcomes.set(`TPC-B, ${protocol}`, await runOnce(arena, side, ["-M", protocol, "-n"], false));
  outcomes.set("a connection for each transaction", await runOnce(arena, side, ["-C", "-n", "-S"], false));
  return outcomes;
}

/** How it ended, what it says that is no measurement, and the rows left. */
async function runOnce(arena: Arena, side: Side, args: readonly string[], rows = true): Promise<string> {
  const load = args.includes("-i") ? [] : ["-c", String(CLIENTS), "-j", "1", "-t", String(TRANSACTIONS_EACH), "-n"];
  const { code, stdout, stderr } = await command(PGBENCH, [...load, ...args], {
    env: environmentOf(side),
    timeoutMs: RUN_MS_MAX,
  });
  const done = /number of transactions actually processed: .*/.exec(stdout)?.[0] ?? "";
  const failed = /number of failed transactions: \d+/.exec(stdout)?.[0] ?? "";
  const errors = [...new Set([...stderr.matchAll(/ERROR: .*|DETAIL: .*|aborted in .*/g)].map(([line]) => line))].sort();
  const left = rows
    ? (await arena.admin.query("SELECT client, n, count(*)::int AS rows FROM hit GROUP BY 1, 2 ORDER BY 1, 2")).rows
    : [];
  return [`exit ${code}`, done, failed, ...errors, JSON.stringify(left)].filter(Boolean).join("\n");
}
