/**
 * libpq's connection parameters, by its names → a DatabaseAddress. What they mean is libpq's; what is not known is not
 * passed over in silence.
 */
import { createPrivateKey, X509Certificate } from "node:crypto";
import { readFileSync } from "node:fs";
import {
  type ClientCertificate,
  type DatabaseAddress,
  type Endpoint,
  isUnixSocket,
  SYSTEM_AUTHORITIES,
} from "./database.ts";

/** In the order in which people are told them. */
export const PARAMETERS = [
  "host",
  "port",
  "dbname",
  "user",
  "password",
  "sslmode",
  "sslrootcert",
  "sslcert",
  "sslkey",
  "sslpassword",
  "sslsni",
  "sslnegotiation",
  "channel_binding",
  "connect_timeout",
  "keepalives",
  "keepalives_idle",
  "target_session_attrs",
] as const;

export type ParameterName = (typeof PARAMETERS)[number];
export type Parameters = ReadonlyMap<ParameterName, string>;

/** PEM texts that were given as such; they win over the files that the parameters name. */
export interface Pems {
  readonly ca?: string | undefined;
  readonly certificate?: string | undefined;
  readonly key?: string | undefined;
}

const SSL_MODES = ["disable", "allow", "prefer", "require", "verify-ca", "verify-full"] as const;
/** As in libpq: one second is less than it takes. */
const CONNECT_SECONDS_MIN = 2;

/** Throws an Error that names what is wrong; it never repeats a password. */
export function addressFromParameters(parameters: Parameters, pems: Pems = {}): DatabaseAddress {
  const [first, ...further] = endpoints(parameters.get("host"), parameters.get("port"));
  const user = parameters.get("user");
  if (!first || !user) throw new Error("it names no user");
  const password = parameters.get("password");
  const ca = pems.ca ?? authorities(parameters.get("sslrootcert"));
  const fromSystem = ca === SYSTEM_AUTHORITIES;
  const sslmode = oneOf("sslmode", SSL_MODES, parameters.get("sslmode")) ?? (fromSystem ? "verify-full" : "prefer");
  const own = clientCertificate(parameters, pems);
  const sslSni = onOff("sslsni", parameters.get("sslsni"));
  const sslNegotiation = oneOf("sslnegotiation", ["postgres", "direct"], parameters.get("sslnegotiation"));
  const channelBinding = oneOf("channel_binding", ["disable", "prefer", "require"], parameters.get("channel_binding"));
  const target = targetSession(parameters.get("target_session_attrs"));
  const connectSeconds = wholeNumber("connect_timeout", parameters.get("connect_timeout"));
  const idleMs = keepAliveIdleMs(parameters);
  const address: DatabaseAddress = {
    ...first,
    ...(further.length > 0 && { furtherHosts: further }),
    database: parameters.get("dbname") || user,
    user,
    ...(password !== undefined && { password }),
    sslmode,
    ...(ca !== undefined && { ca }),
    ...(own && { clientCertificate: own }),
    ...(sslSni !== undefined && { sslSni }),
    ...(sslNegotiation && { sslNegotiation }),
    ...(channelBinding && { channelBinding }),
    ...(target && { targetSession: target }),
    // 0 is libpq's word for no bound of its own.
    ...(connectSeconds && { connectTimeoutMs: Math.max(CONNECT_SECONDS_MIN, connectSeconds) * 1000 }),
    ...(idleMs !== undefined && { keepAliveIdleMs: idleMs }),
  };
  const contradiction = contradictionIn(address);
  if (contradiction) throw new Error(contradiction);
  return address;
}

/** Parameters that libpq takes one by one, but not together. */
function contradictionIn(address: DatabaseAddress): string | undefined {
  const { sslmode } = address;
  const mayBePlain = sslmode === "disable" || sslmode === "allow" || sslmode === "prefer";
  if (address.sslNegotiation === "direct" && mayBePlain) {
    return `sslnegotiation=direct needs sslmode=require or stricter, not ${sslmode}`;
  }
  if (address.ca === SYSTEM_AUTHORITIES && sslmode !== "verify-full") {
    return `sslrootcert=system needs sslmode=verify-full, not ${sslmode}: the system's authorities certify anybody`;
  }
  if (address.channelBinding !== "require") return undefined;
  if (sslmode === "disable") return "channel_binding=require needs TLS, and sslmode=disable forbids it";
  if (isUnixSocket(address)) return "channel_binding=require needs TLS, and a Unix socket has none";
  return undefined;
}

/** Lists of the same length, or one port for all hosts; an empty place is the default. */
function endpoints(hostText = "", portText = ""): Endpoint[] {
  const hosts = hostText.split(",");
  const ports = portText.split(",");
  if (ports.length !== 1 && ports.length !== hosts.length) {
    throw new Error(`it has ${ports.length} ports for ${hosts.length} hosts`);
  }
  return hosts.map((host, i) => ({
    host: host || "localhost",
    port: portOf((ports.length === 1 ? ports[0] : ports[i]) || "5432"),
  }));
}

function portOf(text: string): number {
  const port = /^\d+$/.test(text) ? Number(text) : 0;
  if (port < 1 || port > 65_535) throw new Error(`its port "${text}" is not a number from 1 to 65535`);
  return port;
}

function authorities(sslrootcert: string | undefined): string | undefined {
  if (sslrootcert === undefined || sslrootcert === SYSTEM_AUTHORITIES) return sslrootcert;
  return readPem("sslrootcert", sslrootcert);
}

function clientCertificate(parameters: Parameters, pems: Pems): ClientCertificate | undefined {
  const certificate = pems.certificate ?? readPem("sslcert", parameters.get("sslcert"));
  const key = pems.key ?? readPem("sslkey", parameters.get("sslkey"));
  if (certificate === undefined && key === undefined) return undefined;
  if (certificate === undefined) throw new Error("it has a client key, and no client certificate for it");
  if (key === undefined) throw new Error("it has a client certificate, and no key for it");
  const passphrase = parameters.get("sslpassword");
  const encrypted = key.includes("ENCRYPTED");
  if (encrypted && !passphrase) {
    throw new Error("its client key is encrypted: give the passphrase as sslpassword, or a key without one");
  }
  assertBelongTogether(certificate, key, passphrase);
  return { certificate, key, ...(encrypted && passphrase && { passphrase }) };
}

function assertBelongTogether(certificate: string, key: string, passphrase: string | undefined): void {
  const read = <T>(what: string, from: () => T): T => {
    try {
      return from();
    } catch (error) {
      throw new Error(`its ${what} cannot be read: ${(error as Error).message}`);
    }
  };
  const privateKey = read("client key", () => createPrivateKey({ key, ...(passphrase && { passphrase }) }));
  const own = read("client certificate", () => new X509Certificate(certificate));
  if (!own.checkPrivateKey(privateKey)) throw new Error("its client certificate belongs to another key");
}

function readPem(name: string, path: string | undefined): string | undefined {
  if (path === undefined) return undefined;
  try {
    return readFileSync(path, "utf8");
  } catch (error) {
    throw new Error(`its ${name} cannot be read: ${(error as Error).message}`);
  }
}

function targetSession(text: string | undefined): DatabaseAddress["targetSession"] {
  if (text === "standby" || text === "read-only" || text === "prefer-standby") {
    throw new Error(`target_session_attrs=${text} leads to a standby, and a fence needs a primary`);
  }
  return oneOf("target_session_attrs", ["read-write", "primary", "any"], text);
}

function keepAliveIdleMs(parameters: Parameters): number | undefined {
  if (onOff("keepalives", parameters.get("keepalives")) === false) return 0;
  const seconds = wholeNumber("keepalives_idle", parameters.get("keepalives_idle"));
  return seconds ? seconds * 1000 : undefined;
}

function oneOf<T extends string>(name: string, values: readonly T[], text: string | undefined): T | undefined {
  if (text === undefined || text === "") return undefined;
  const value = values.find((known) => known === text);
  if (value === undefined) throw new Error(`its ${name} "${text}" is unknown; one of: ${values.join(", ")}`);
  return value;
}

function onOff(name: string, text: string | undefined): boolean | undefined {
  const value = oneOf(name, ["0", "1"], text);
  return value === undefined ? undefined : value === "1";
}

function wholeNumber(name: string, text: string | undefined): number | undefined {
  if (text === undefined || text === "") return undefined;
  if (!/^\d{1,9}$/.test(text)) throw new Error(`its ${name} "${text}" is not a number of seconds`);
  return Number(text);
}
