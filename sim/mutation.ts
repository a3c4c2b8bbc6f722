/** Loaded in front of everything (`node --import`): changes one source as FENCEDJOB_SIM_MUTANT says (mutants.ts). */
import { registerHooks } from "node:module";
import { MUTANTS } from "./mutants.ts";

const mutant = MUTANTS[process.env.FENCEDJOB_SIM_MUTANT ?? ""];
if (mutant) {
  const { file, edits } = mutant;
  const url = new URL(`../${file}`, import.meta.url).href;
  registerHooks({
    load(asked, context, next) {
      const loaded = next(asked, context);
      if (asked !== url) return loaded;
      let source = String(loaded.source);
      for (const [from, to] of edits) {
        if (!source.includes(from)) throw new Error(`the mutant's text is not in ${file} any more: ${from}`);
        source = source.replace(from, () => to);
      }
      return { ...loaded, source };
    },
  });
}
