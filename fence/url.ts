/** A connection string as libpq reads it: `postgres://user:password@host:port,host:port/database?sslmode=…`. */
import type { DatabaseAddress } from "./database.ts";
import { addressFromParameters, PARAMETERS, type ParameterName } from "./parameters.ts";

const FORM = /^postgres(?:ql)?:\/\/(?:([^/?]*)@)?([^/?@]*)(?:\/([^?]*))?(?:\?(.*))?$/;
const KNOWN: ReadonlySet<string> = new Set(PARAMETERS);

/** Throws an Error that names what is wrong; never repeats the password. Defaults are libpq's, and localhost. */
export function addressFromUrl(text: string): DatabaseAddress {
  const parameters = parametersFromUrl(text);
  try {
    return addressFromParameters(parameters);
  } catch (error) {
    throw new Error(`the database URL is of no use: ${(error as Error).message}`);
  }
}

/** Throws as `addressFromUrl`. */
export function parametersFromUrl(text: string): Map<ParameterName, string> {
  const [whole, userinfo, hostports = "", database, query] = FORM.exec(text) ?? [];
  if (whole === undefined) {
    throw new Error("the database URL must look like postgres://user:password@host:5432/database?sslmode=require");
  }
  if (isCutInside(userinfo, database, query)) {
    throw new Error("the database URL has a / or ? in user or password: write %2F or %3F for it, and %40 for an @");
  }
  const [, user = "", password] = /^([^:]*)(?::(.*))?$/s.exec(userinfo ?? "") ?? [];
  const { hosts, ports } = splitHosts(hostports);
  const parameters = new Map<ParameterName, string>();
  const set = (name: ParameterName, value: string | undefined): void => {
    if (value) parameters.set(name, decoded(value));
  };
  set("user", user);
  set("password", password);
  set("host", hosts);
  set("port", ports);
  set("dbname", database);
  for (const pair of (query ?? "").split("&").filter(Boolean)) {
    const [, name = "", value = ""] = /^([^=]*)=?(.*)$/s.exec(pair) ?? [];
    if (!isKnown(name)) {
      throw new Error(
        `the database URL has a parameter that is not supported: ${name} (known: ${PARAMETERS.join(", ")})`,
      );
    }
    parameters.set(name, decoded(value));
  }
  return parameters;
}

/** What stands behind an @ was taken for the rest then, and a part of the password for a host, port or name, which would be told. */
function isCutInside(userinfo: string | undefined, database = "", query = ""): boolean {
  if (database.includes("@") || /(?:^|&)[^=&]*@/.test(query)) return true;
  return userinfo === undefined && query.includes("@") && !/(?:^|&)user=/.test(query);
}

/** Host by host, as the brackets of an IPv6 address belong to the URL and not to the address. */
function splitHosts(text: string): { hosts: string; ports: string } {
  const split = text.split(",").map((one) => {
    const [, inBrackets, host, port = ""] = /^(?:\[(.*)\]|([^:]*))(?::(.*))?$/.exec(one) ?? [];
    if (inBrackets === undefined && host === undefined)
      throw new Error("the database URL has a host that cannot be read");
    return { host: inBrackets ?? host ?? "", port };
  });
  const ports = split.map(({ port }) => port);
  return {
    hosts: split.map(({ host }) => host).join(","),
    ports: ports.every((port) => port === "") ? "" : ports.join(","),
  };
}

const isKnown = (name: string): name is ParameterName => KNOWN.has(name);

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    throw new Error("the database URL has a % that begins no escape: write %25 for the character itself");
  }
}
