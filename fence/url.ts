/** A connection string (`postgres://user:password@host:port/database?sslmode=…&sslrootcert=…`) as a DatabaseAddress. */
import { readFileSync } from "node:fs";
import type { DatabaseAddress, SslMode } from "./database.ts";

const SSL_MODES: ReadonlySet<string> = new Set(["disable", "allow", "prefer", "require", "verify-ca", "verify-full"]);
const PARAMETERS: ReadonlySet<string> = new Set(["sslmode", "sslrootcert"]);

/** Throws an Error that names what is wrong; never repeats the password. Defaults are libpq's. */
export function addressFromUrl(text: string): DatabaseAddress {
  const url = URL.canParse(text) ? new URL(text) : undefined;
  if (!url || (url.protocol !== "postgres:" && url.protocol !== "postgresql:")) {
    throw new Error("the database URL must look like postgres://user:password@host:5432/database?sslmode=require");
  }
  for (const name of url.searchParams.keys()) {
    if (!PARAMETERS.has(name)) {
      throw new Error(`the database URL has a parameter that is not supported: ${name} (known: sslmode, sslrootcert)`);
    }
  }
  const sslmode = url.searchParams.get("sslmode") ?? "prefer";
  if (!isSslMode(sslmode)) throw new Error(`sslmode=${sslmode} is unknown; one of: ${[...SSL_MODES].join(", ")}`);
  const user = decodeURIComponent(url.username);
  if (user === "") throw new Error("the database URL names no user");
  const password = decodeURIComponent(url.password);
  const rootCertificate = url.searchParams.get("sslrootcert");
  return {
    // Brackets of an IPv6 address belong to the URL, not to the address.
    host: decodeURIComponent(url.hostname).replace(/^\[(.*)\]$/, "$1") || "localhost",
    port: url.port === "" ? 5432 : Number(url.port),
    database: decodeURIComponent(url.pathname.slice(1)) || user,
    user,
    sslmode,
    ...(password === "" ? {} : { password }),
    ...(rootCertificate === null ? {} : { ca: readFileSync(rootCertificate, "utf8") }),
  };
}

export function isSslMode(text: string): text is SslMode {
  return SSL_MODES.has(text);
}
