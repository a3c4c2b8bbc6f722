/** The application as text: it is run by `node -e` in an image that has nothing but Node.js. */
import { readFileSync } from "node:fs";
import { join } from "node:path";

export const WRITER = readFileSync(join(import.meta.dirname, "writer.mjs"), "utf8");
