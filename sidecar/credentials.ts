/** The mounted Secret of a database → its address. Read anew for each attempt: the kubelet updates it in place. */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import type { DatabaseAddress } from "../fence/database.ts";
import { addressFromUrl, isSslMode } from "../fence/url.ts";

export type Credentials =
  | { readonly ok: true; readonly address: DatabaseAddress }
  | { readonly ok: false; readonly problem: string };

/** Keys: `uri`, or host, port, dbname, user, password, sslmode; `ca.crt` with either. Single keys win over the uri's parts. */
export function readCredentials(dir: string): Credentials {
  const file = (key: string): string | undefined => readKey(join(dir, key));
  let base: Partial<DatabaseAddress> = {};
  const uri = file("uri");
  if (uri !== undefined) {
    try {
      base = addressFromUrl(uri);
    } catch (error) {
      return { ok: false, problem: `its key \`uri\` cannot be read: ${(error as Error).message}` };
    }
  }
  const host = file("host") ?? base.host;
  const database = file("dbname") ?? base.database;
  const user = file("user") ?? base.user;
  if (!host || !database || !user) {
    const missing = Object.entries({ host, dbname: database, user }).filter(([, value]) => !value);
    return { ok: false, problem: `it has no key \`uri\`, and lacks ${missing.map(([key]) => key).join(", ")}` };
  }
  const port = Number(file("port") ?? base.port ?? 5432);
  if (!Number.isInteger(port) || port < 1 || port > 65535) {
    return { ok: false, problem: "its port is not a number from 1 to 65535" };
  }
  const sslmode = file("sslmode") ?? base.sslmode ?? "prefer";
  if (!isSslMode(sslmode)) return { ok: false, problem: `its sslmode "${sslmode}" is unknown` };
  const password = file("password") ?? base.password;
  const ca = file("ca.crt") ?? base.ca;
  return {
    ok: true,
    address: {
      host,
      port,
      database,
      user,
      sslmode,
      ...(password !== undefined && { password }),
      ...(ca !== undefined && { ca }),
    },
  };
}

function readKey(path: string): string | undefined {
  try {
    // Secrets are often made with a line end that nobody meant.
    return readFileSync(path, "utf8").replace(/\r?\n$/, "");
  } catch {
    return undefined;
  }
}
