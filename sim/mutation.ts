/** Loaded in front of everything (`node --import`): changes the sources as FENCEDJOB_SIM_MUTANT says (mutants.ts). */
import { registerHooks } from "node:module";
import { MUTANTS } from "./mutants.ts";

const edits = MUTANTS[process.env.FENCEDJOB_SIM_MUTANT ?? ""] ?? [];
const urlOf = (file: string): string => new URL(`../${file}`, import.meta.url).href;

if (edits.length > 0) {
  registerHooks({
    load(url, context, next) {
      const loaded = next(url, context);
      const own = edits.filter(({ file }) => urlOf(file) === url);
      if (own.length === 0) return loaded;
      let source = String(loaded.source);
      for (const { file, from, to } of own) {
        if (!source.includes(from)) throw new Error(`the mutant's text is not in ${file} any more: ${from}`);
        source = source.replace(from, () => to);
      }
      return { ...loaded, source };
    },
  });
}
