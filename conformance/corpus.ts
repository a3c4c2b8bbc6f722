/** psql's whole output of every script of `corpus/`, direct and through the proxy, from the same empty database. */
import { existsSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { type Arena, environmentOf, onEachSide, type Side } from "./arena.ts";
import { command } from "./command.ts";
import type { Sides } from "./results.ts";

const CORPUS = join(import.meta.dirname, "corpus");
const PSQL = "/usr/bin/psql";
const SCRIPT_MS_MAX = 60_000;

export const corpusScripts: readonly string[] = readdirSync(CORPUS).filter((file) => file.endsWith(".sql"));

export const CORPUS_DATABASE = { database: "corpus", role: "corpus_app" } as const;

/** Why the corpus cannot run here; null when it can. */
export const corpusMissing = (): string | null =>
  existsSync(PSQL) ? null : "psql is not installed (Debian: postgresql-client)";

export const runCorpus = (arena: Arena): Promise<Sides> =>
  onEachSide(arena, async (side) => {
    const outputs = new Map<string, string>();
    for (const script of corpusScripts) outputs.set(script, await runScript(arena, script, side));
    return outputs;
  });

export async function runScript(arena: Arena, script: string, side: Side): Promise<string> {
  await arena.reset();
  const args = ["-X", "-a", "-f", join(CORPUS, script)];
  const env = { ...environmentOf(side), PAGER: "" };
  const { code, stdout, stderr } = await command(PSQL, args, { env, timeoutMs: SCRIPT_MS_MAX });
  return normalized(`${stdout}\n=== stderr\n${stderr}\n=== exit ${code}`);
}

/** What differs between two runs of the same server: pids, and the directory of the scripts. */
function normalized(text: string): string {
  return text.replaceAll(/PID \d+/g, "PID n").replaceAll(/^psql:[^ ]*?(\w+\.sql:\d+)/gm, "psql:$1");
}

/** The first lines that differ, for the report. */
export function firstDifference(direct: string, other: string): { direct: string; other: string } {
  const d = direct.split("\n");
  const o = other.split("\n");
  const at = d.findIndex((line, i) => line !== o[i]);
  const from = Math.max(0, at - 1);
  return { direct: d.slice(from, from + 6).join("\n"), other: o.slice(from, from + 6).join("\n") };
}
