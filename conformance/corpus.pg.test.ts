/** The corpus of `make conformance` as tests: psql's whole output, direct against through `fencedjob proxy`. */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { endsAnd14 } from "../testing/postgres.ts";
import { type Arena, startArena } from "./arena.ts";
import { CORPUS_DATABASE, corpusMissing, corpusScripts, runScript } from "./corpus.ts";
import { explain } from "./differences.ts";

const why = corpusMissing();
if (why) console.warn(`skipped: ${why}`);

describe.skipIf(why).each(endsAnd14())("PostgreSQL %i", (version) => {
  let arena: Arena;

  beforeAll(async () => {
    arena = await startArena({ version, ...CORPUS_DATABASE });
  });
  afterAll(() => arena?.stop());

  const scripts = corpusScripts.filter((_script, i) => version !== 14 || i % 4 === 0);
  test.each(scripts)("%s", async (script) => {
    const direct = await runScript(arena, script, arena.direct);
    const proxied = await runScript(arena, script, arena.proxied);
    expect(direct).toContain(readFileSync(join(import.meta.dirname, "corpus", script), "utf8").split("\n")[0]);
    // A difference that is listed and gone must leave the list.
    if (explain("corpus", script) === null) expect(proxied).toBe(direct);
    else expect(proxied).not.toBe(direct);
  });
});
