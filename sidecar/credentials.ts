/** The mounted Secret of a database → its address. Read anew for each attempt: the kubelet updates it in place. */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import type { DatabaseAddress } from "../fence/database.ts";
import { addressFromParameters, PARAMETERS, type ParameterName } from "../fence/parameters.ts";
import { parametersFromUrl } from "../fence/url.ts";

export type Credentials =
  | { readonly ok: true; readonly address: DatabaseAddress }
  | { readonly ok: false; readonly problem: string };

/**
 * Keys: `uri`, or libpq's parameters (host, port, dbname, user, password, sslmode, …), and `ca.crt`, `tls.crt`, `tls.key`
 * with either. Single keys win over the uri's parts; other keys are not looked at.
 */
export function readCredentials(dir: string): Credentials {
  const file = (key: string): string | undefined => readKey(join(dir, key));
  let parameters = new Map<ParameterName, string>();
  const uri = file("uri");
  if (uri !== undefined) {
    try {
      parameters = parametersFromUrl(uri);
    } catch (error) {
      return { ok: false, problem: `its key \`uri\` cannot be read: ${(error as Error).message}` };
    }
  }
  for (const name of PARAMETERS) {
    const value = file(name);
    if (value !== undefined) parameters.set(name, value);
  }
  const missing = (["host", "dbname", "user"] as const).filter((name) => !parameters.get(name));
  if (uri === undefined && missing.length > 0) {
    return { ok: false, problem: `it has no key \`uri\`, and lacks ${missing.join(", ")}` };
  }
  try {
    const pems = { ca: file("ca.crt"), certificate: file("tls.crt"), key: file("tls.key") };
    return { ok: true, address: addressFromParameters(parameters, pems) };
  } catch (error) {
    return { ok: false, problem: (error as Error).message };
  }
}

function readKey(path: string): string | undefined {
  try {
    // Secrets are often made with a line end that nobody meant.
    return readFileSync(path, "utf8").replace(/\r?\n$/, "");
  } catch {
    return undefined;
  }
}
