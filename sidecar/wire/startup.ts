/** The first messages of a client: requests for encryption, a cancel, or the start of a session. Pure. */
import { ProtocolError } from "./framer.ts";
import { BACK, cstringEnd, message } from "./messages.ts";
import { saysTrue } from "./statements.ts";

export type FirstMessage =
  /** SSLRequest: answered 'S' or 'N', another first message follows. */
  | { readonly kind: "ssl"; readonly bytes: number }
  /** GSSENCRequest: answered 'N', the same. */
  | { readonly kind: "gss"; readonly bytes: number }
  | { readonly kind: "cancel"; readonly bytes: number; readonly pid: number; readonly key: Buffer }
  | { readonly kind: "startup"; readonly bytes: number; readonly startup: Startup };

export interface Startup {
  /** Minor version of protocol 3 that the client asks for. */
  readonly minor: number;
  /** In the client's order; a later one of the same name wins. */
  readonly parameters: readonly (readonly [string, string])[];
}

const CANCEL_CODE = 80877102;
const SSL_CODE = 80877103;
const GSS_CODE = 80877104;
/** First byte of a TLS handshake; no startup message is so long that it could be its own. */
const TLS_HANDSHAKE = 0x16;
/** As in PostgreSQL: beyond it a startup message is refused. */
export const STARTUP_BYTES_MAX = 10_000;
const CANCEL_BYTES_MAX = 12 + 256;
/** The newest minor version spoken with clients. */
const MINOR_MAX = 2;

export const beginsTls = (bytes: Buffer): boolean => bytes[0] === TLS_HANDSHAKE;

/** The first message at the beginning of `bytes`; undefined while it is incomplete. Throws ProtocolError. */
export function readFirst(bytes: Buffer): FirstMessage | undefined {
  if (beginsTls(bytes)) throw new ProtocolError("TLS is not spoken here: use sslmode=disable, prefer or allow");
  if (bytes.length < 8) return undefined;
  const length = bytes.readUInt32BE(0);
  if (length < 8 || length > STARTUP_BYTES_MAX) throw new ProtocolError(`invalid length of startup packet ${length}`);
  const code = bytes.readUInt32BE(4);
  if (code === CANCEL_CODE && length > CANCEL_BYTES_MAX) throw new ProtocolError("cancel key is too long");
  if (bytes.length < length) return undefined;
  if (code === SSL_CODE) return { kind: "ssl", bytes: length };
  if (code === GSS_CODE) return { kind: "gss", bytes: length };
  if (code === CANCEL_CODE) {
    if (length < 16) throw new ProtocolError("cancel request is too short");
    return { kind: "cancel", bytes: length, pid: bytes.readInt32BE(8), key: Buffer.from(bytes.subarray(12, length)) };
  }
  if (code >>> 16 !== 3) throw new ProtocolError(`unsupported frontend protocol ${code >>> 16}.${code & 0xffff}`);
  return {
    kind: "startup",
    bytes: length,
    startup: { minor: code & 0xffff, parameters: readParameters(bytes, length) },
  };
}

function readParameters(bytes: Buffer, length: number): [string, string][] {
  const parameters: [string, string][] = [];
  let at = 8;
  while (at < length && bytes[at] !== 0) {
    const nameEnd = cstringEnd(bytes, at, length);
    const valueEnd = cstringEnd(bytes, nameEnd + 1, length);
    if (valueEnd >= length) throw new ProtocolError("invalid startup packet layout");
    parameters.push([bytes.toString("utf8", at, nameEnd), bytes.toString("utf8", nameEnd + 1, valueEnd)]);
    at = valueEnd + 1;
  }
  if (at !== length - 1) throw new ProtocolError("invalid startup packet layout: expected terminator as last byte");
  return parameters;
}

export interface StartupPlan {
  /** Startup message for the server. */
  readonly toServer: Buffer;
  /** For a pooler that refuses the last parameter of `toServer`: without it. */
  readonly toPooler: Buffer;
  /** NegotiateProtocolVersion for the client, when it asked for what is not spoken. */
  readonly negotiate: Buffer | undefined;
  readonly keyBytes: number;
  readonly database: string | undefined;
  /** The client says who it is, as it must; who that is does not matter. */
  readonly namesUser: boolean;
  /** The client wants its transactions read-only. */
  readonly readOnlyDefault: boolean;
  /** replication=… was asked for. */
  readonly replication: boolean;
}

export const READ_ONLY_DEFAULT = "default_transaction_read_only";

/** Names that only the proxy may set: they decide whether an unfenced transaction can write. */
const OURS = new Set([READ_ONLY_DEFAULT, "transaction_read_only", "replication", "user", "database"]);

export function planStartup(startup: Startup, user: string, database: string): StartupPlan {
  const forServer: [string, string][] = [
    ["user", user],
    ["database", database],
  ];
  const extensions: string[] = [];
  const given = new Map<string, string>();
  for (const [name, value] of startup.parameters) {
    given.set(name.toLowerCase(), value);
    if (name.startsWith("_pq_.")) extensions.push(name);
    else if (!OURS.has(name.toLowerCase())) forServer.push([name, value]);
  }
  const replication = given.get("replication");
  return {
    // Last, so that it wins over `options` and over anything earlier; RESET ALL then comes back to it.
    toServer: startupMessage([...forServer, [READ_ONLY_DEFAULT, "on"]]),
    toPooler: startupMessage(forServer),
    negotiate: startup.minor > MINOR_MAX || extensions.length > 0 ? negotiation(startup.minor, extensions) : undefined,
    keyBytes: startup.minor >= 2 ? 32 : 4,
    database: given.get("database") ?? given.get("user"),
    namesUser: Boolean(given.get("user")),
    readOnlyDefault: isOn(given.get(READ_ONLY_DEFAULT)) || optionsSayReadOnly(given.get("options") ?? ""),
    replication: replication !== undefined && !/^(off|false|no|0)$/i.test(replication),
  };
}

function startupMessage(parameters: readonly (readonly [string, string])[]): Buffer {
  const version = Buffer.from([0, 3, 0, 0]);
  const text = parameters.map(([name, value]) => `${name}\0${value}\0`).join("");
  return message(0, Buffer.concat([version, Buffer.from(text), Buffer.alloc(1)]));
}

function negotiation(minor: number, extensions: readonly string[]): Buffer {
  const head = Buffer.alloc(8);
  head.writeUInt32BE((3 << 16) | Math.min(minor, MINOR_MAX), 0);
  head.writeUInt32BE(extensions.length, 4);
  return message(BACK.negotiateVersion, Buffer.concat([head, Buffer.from(extensions.map((e) => `${e}\0`).join(""))]));
}

const isOn = (value: string | undefined): boolean => value !== undefined && saysTrue(value);

const UNREADABLE_ENCODINGS = new Set(["SJIS", "SHIFT_JIS_2004", "BIG5", "GBK", "UHC", "GB18030", "JOHAB"]);

/** A client encoding, as the server reports it, in which a byte of a character can be a backslash or a quote. */
export const isUnreadable = (encoding: string): boolean => UNREADABLE_ENCODINGS.has(encoding.toUpperCase());

function optionsSayReadOnly(options: string): boolean {
  let answer = false;
  for (const [, value] of options.matchAll(/(?:-c\s*|--)default[_-]transaction[_-]read[_-]only=(\S+)/gi)) {
    answer = isOn(value);
  }
  return answer;
}
