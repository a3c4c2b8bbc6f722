/** The versioned SQL of the fence schema, in order. */
import { readdirSync, readFileSync } from "node:fs";

export interface Migration {
  readonly version: number;
  readonly name: string;
  readonly sql: string;
}

/** Reads `migrations/NNNN_name.sql` beside this file (a bundle carries the folder beside itself). */
export function loadMigrations(): readonly Migration[] {
  const folder = new URL("./migrations/", import.meta.url);
  const migrations = readdirSync(folder)
    .filter((file) => /^\d{4}_\w+\.sql$/.test(file))
    .sort()
    .map((file) => ({
      version: Number(file.slice(0, 4)),
      name: file.slice(5, -4),
      sql: readFileSync(new URL(file, folder), "utf8"),
    }));
  for (const [index, { version, name }] of migrations.entries()) {
    if (version !== index + 1) throw new Error(`migration ${name} has number ${version}, not ${index + 1}`);
  }
  return migrations;
}

/** The schema's version that this program speaks. */
export const SCHEMA_VERSION = 6;
