/** The mounted Secret of a database → its address. Read anew for each attempt: the kubelet updates it in place. */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import type { DatabaseAddress, SslMode } from "../fence/database.ts";

export type Credentials =
  | { readonly ok: true; readonly address: DatabaseAddress }
  | { readonly ok: false; readonly problem: string };

const SSL_MODES: readonly SslMode[] = ["disable", "allow", "prefer", "require", "verify-ca", "verify-full"];

/** Keys: `uri`, or host, port, dbname, user, password, sslmode; `ca.crt` with either. Single keys win over the uri's parts. */
export function readCredentials(dir: string): Credentials {
  const file = (key: string): string | undefined => readKey(join(dir, key));
  const uri = file("uri");
  const fromUri = uri === undefined ? {} : parseUri(uri);
  if (fromUri === null) return { ok: false, problem: "its key `uri` is not a postgres:// address" };
  const host = file("host") ?? fromUri.host;
  const database = file("dbname") ?? fromUri.database;
  const user = file("user") ?? fromUri.user;
  const missing = Object.entries({ host, dbname: database, user }).filter(([, value]) => !value);
  if (!host || !database || !user) {
    return { ok: false, problem: `it has no \`uri\`, and lacks ${missing.map(([key]) => key).join(", ")}` };
  }
  const port = Number(file("port") ?? fromUri.port ?? 5432);
  if (!Number.isInteger(port) || port < 1 || port > 65535)
    return { ok: false, problem: "its port is not a number from 1 to 65535" };
  const sslmode = (file("sslmode") ?? fromUri.sslmode ?? "prefer") as SslMode;
  if (!SSL_MODES.includes(sslmode))
    return { ok: false, problem: `its sslmode "${sslmode}" is none of ${SSL_MODES.join(", ")}` };
  const password = file("password") ?? fromUri.password;
  const ca = file("ca.crt");
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

interface UriParts {
  host?: string | undefined;
  port?: string | undefined;
  database?: string | undefined;
  user?: string | undefined;
  password?: string | undefined;
  sslmode?: string | undefined;
}

/** null when it is no address at all. */
export function parseUri(text: string): UriParts | null {
  if (!/^postgres(ql)?:\/\//.test(text) || !URL.canParse(text)) return null;
  const url = new URL(text);
  const decoded = (part: string): string | undefined => (part === "" ? undefined : decodeURIComponent(part));
  return {
    host: decoded(url.hostname.replace(/^\[|\]$/g, "")) ?? url.searchParams.get("host") ?? undefined,
    port: decoded(url.port),
    database: decoded(url.pathname.slice(1)),
    user: decoded(url.username),
    password: decoded(url.password),
    sslmode: url.searchParams.get("sslmode") ?? undefined,
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
