/** Bytes of the few protocol messages that the wire builds or takes apart itself. */

/** First bytes of messages, by direction. */
export const FRONT = {
  bind: 0x42, // B
  close: 0x43, // C
  describe: 0x44, // D
  execute: 0x45, // E
  functionCall: 0x46, // F
  flush: 0x48, // H
  parse: 0x50, // P
  query: 0x51, // Q
  sync: 0x53, // S
  terminate: 0x58, // X
  copyDone: 0x63, // c
  copyData: 0x64, // d
  copyFail: 0x66, // f
  password: 0x70, // p
} as const;

export const BACK = {
  parseComplete: 0x31, // 1
  bindComplete: 0x32, // 2
  closeComplete: 0x33, // 3
  notification: 0x41, // A
  commandComplete: 0x43, // C
  dataRow: 0x44, // D
  error: 0x45, // E
  copyIn: 0x47, // G
  copyOut: 0x48, // H
  emptyQuery: 0x49, // I
  backendKey: 0x4b, // K
  notice: 0x4e, // N
  authentication: 0x52, // R
  parameterStatus: 0x53, // S
  rowDescription: 0x54, // T
  copyBoth: 0x57, // W
  ready: 0x5a, // Z
  parameterDescription: 0x74, // t
  noData: 0x6e, // n
  portalSuspended: 0x73, // s
  negotiateVersion: 0x76, // v
} as const;

/** Transaction status in ReadyForQuery. */
export const IDLE = 0x49; // I
export const IN_BLOCK = 0x54; // T
export const FAILED = 0x45; // E

/** A message of `type` (0: none, as in startup messages) around `body`. */
export function message(type: number, body: Buffer): Buffer {
  const head = type === 0 ? 0 : 1;
  const bytes = Buffer.allocUnsafe(head + 4 + body.length);
  if (head === 1) bytes[0] = type;
  bytes.writeUInt32BE(4 + body.length, head);
  body.copy(bytes, head + 4);
  return bytes;
}

export const cstring = (text: string): Buffer => Buffer.from(`${text}\0`);

export const query = (text: string): Buffer => message(FRONT.query, cstring(text));

export const parse = (name: string, text: string): Buffer =>
  message(FRONT.parse, Buffer.concat([cstring(name), cstring(text), Buffer.alloc(2)]));

/** Binds `portal` to a statement without parameters. */
export const bind = (portal: string, statement: string): Buffer =>
  message(FRONT.bind, Buffer.concat([cstring(portal), cstring(statement), Buffer.alloc(6)]));

export const execute = (portal: string): Buffer =>
  message(FRONT.execute, Buffer.concat([cstring(portal), Buffer.alloc(4)]));

export const describeStatement = (name: string): Buffer => message(FRONT.describe, cstring(`S${name}`));

export const describePortal = (name: string): Buffer => message(FRONT.describe, cstring(`P${name}`));

export const closeStatement = (name: string): Buffer => message(FRONT.close, cstring(`S${name}`));

export const closePortal = (name: string): Buffer => message(FRONT.close, cstring(`P${name}`));

export const copyFail = (reason: string): Buffer => message(FRONT.copyFail, cstring(reason));

export const copyData = (data: Buffer): Buffer => message(FRONT.copyData, data);

export const copyDone = (): Buffer => message(FRONT.copyDone, Buffer.alloc(0));

export const flush = (): Buffer => message(FRONT.flush, Buffer.alloc(0));

export const sync = (): Buffer => message(FRONT.sync, Buffer.alloc(0));

export const terminate = (): Buffer => message(FRONT.terminate, Buffer.alloc(0));

export const authenticationOk = (): Buffer => message(BACK.authentication, Buffer.alloc(4));

export const parameterStatus = (name: string, value: string): Buffer =>
  message(BACK.parameterStatus, Buffer.concat([cstring(name), cstring(value)]));

export const readyForQuery = (status: number): Buffer => message(BACK.ready, Buffer.of(status));

export function backendKey(pid: number, key: Buffer): Buffer {
  const head = Buffer.allocUnsafe(4);
  head.writeInt32BE(pid, 0);
  return message(BACK.backendKey, Buffer.concat([head, key]));
}

/** Fields of an ErrorResponse or NoticeResponse by their letter. */
export type ErrorFields = Map<string, string>;

/** How text is read and written again without a change, whatever encoding it is in. */
export const AS_IT_IS = "latin1";

export function errorFields(bytes: Buffer, start: number, end: number, encoding: BufferEncoding = "utf8"): ErrorFields {
  const fields: ErrorFields = new Map();
  let at = start + 5;
  while (at < end && bytes[at] !== 0) {
    const stop = cstringEnd(bytes, at + 1, end);
    fields.set(String.fromCharCode(bytes[at] as number), bytes.toString(encoding, at + 1, stop));
    at = stop + 1;
  }
  return fields;
}

export function errorMessage(type: number, fields: ErrorFields, encoding: BufferEncoding = "utf8"): Buffer {
  const parts: Buffer[] = [];
  for (const [letter, value] of fields) parts.push(Buffer.from(`${letter}${value}\0`, encoding));
  parts.push(Buffer.alloc(1));
  return message(type, Buffer.concat(parts));
}

/** Index of the NUL that ends the string beginning at `at`; `end` when there is none. */
export function cstringEnd(bytes: Buffer, at: number, end: number): number {
  const stop = bytes.indexOf(0, at);
  return stop === -1 || stop > end ? end : stop;
}
