/** For tests: a client that sends exactly the bytes it is given and notes every message that comes back. */
import { connect, type Socket } from "node:net";
import { isUnixSocket, socketPath } from "../fence/database.ts";
import { type Action, DROP, Framer, type MessageHandler } from "../sidecar/wire/framer.ts";
import { BACK, cstring, errorFields, message } from "../sidecar/wire/messages.ts";

export interface RawOptions {
  readonly host?: string;
  readonly port: number;
  readonly user?: string;
  readonly database?: string;
  readonly minor?: number;
  readonly parameters?: Readonly<Record<string, string>>;
}

/** What is slow on a busy machine is no failure. */
const ANSWER_MS_MAX = 60_000;

export class RawClient implements MessageHandler {
  readonly socket: Socket;
  /** One line per message, as far as it does not depend on the server's numbering. */
  readonly transcript: string[] = [];
  readies = 0;
  /** BackendKeyData. */
  key = Buffer.alloc(0);
  closed = false;
  readonly #framer = new Framer(this, { push: () => {} });
  #wake: () => void = () => {};

  private constructor(socket: Socket) {
    this.socket = socket;
    socket.on("data", (chunk: Buffer) => {
      this.#framer.feed(chunk, 0, chunk.length);
      this.#wake();
    });
    socket.on("error", () => {});
    socket.on("close", () => {
      this.closed = true;
      this.#wake();
    });
  }

  /** Connects and waits for the first ReadyForQuery (or the end of the connection). */
  static async open(options: RawOptions): Promise<RawClient> {
    const client = await RawClient.begin(options);
    await client.until(() => client.readies === 1);
    return client;
  }

  /** Connects and sends its startup message. `host` may be the directory of a Unix socket. */
  static async begin(options: RawOptions): Promise<RawClient> {
    const { host = "127.0.0.1", port } = options;
    const socket = isUnixSocket({ host, port })
      ? connect({ path: socketPath({ host, port }) })
      : connect({ host, port, noDelay: true });
    await new Promise<void>((resolve, reject) => socket.once("connect", () => resolve()).once("error", reject));
    const client = new RawClient(socket);
    const { user = "invoice_app", database = "postgres" } = options;
    const parameters = { user, database, ...options.parameters };
    const text = Object.entries(parameters).map(([name, value]) => `${name}\0${value}\0`);
    client.send(message(0, Buffer.concat([Buffer.from([0, 3, 0, options.minor ?? 0]), cstring(text.join(""))])));
    return client;
  }

  /** A part of a message has come. */
  get partWay(): boolean {
    return !this.#framer.atBoundary;
  }

  bytesNeeded(_type: number, total: number): number {
    return total;
  }

  message(type: number, bytes: Buffer, start: number, end: number): Action {
    const letter = String.fromCharCode(type);
    if (type === BACK.ready) this.readies++;
    if (type === BACK.backendKey) this.key = Buffer.from(bytes.subarray(start + 5, end));
    this.transcript.push(`${letter} ${describe(type, bytes, start, end)}`.trimEnd());
    return DROP;
  }

  send(...parts: Buffer[]): void {
    this.socket.write(Buffer.concat(parts));
  }

  async until(condition: () => boolean): Promise<void> {
    while (!condition() && !this.closed) {
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
  }

  /**
   * Sends and waits for so many more ReadyForQuery (or the end of the connection); returns what came since. Throws when
   * they do not come: a test that hangs says nothing, and shrinks to nothing.
   */
  async exchange(readies: number, ...parts: Buffer[]): Promise<string[]> {
    const from = this.transcript.length;
    const wanted = this.readies + readies;
    this.send(...parts);
    let silent = false;
    const timer = setTimeout(() => {
      silent = true;
      this.socket.destroy();
    }, ANSWER_MS_MAX);
    await this.until(() => this.readies >= wanted);
    clearTimeout(timer);
    const heard = this.transcript.slice(from);
    if (silent) throw new Error(`${readies} ReadyForQuery wanted, silence since ${JSON.stringify(heard)}`);
    return heard;
  }

  async end(): Promise<void> {
    this.socket.end();
    await this.until(() => false);
  }
}

function describe(type: number, bytes: Buffer, start: number, end: number): string {
  switch (type) {
    case BACK.error:
    case BACK.notice: {
      const fields = errorFields(bytes, start, end);
      return ["S", "C", "M", "D", "H", "P"].map((letter) => `${letter}=${fields.get(letter) ?? ""}`).join(" ");
    }
    case BACK.rowDescription:
      return names(bytes, start + 7, bytes.readUInt16BE(start + 5));
    case BACK.backendKey:
    case BACK.notification:
      return "";
    default:
      return bytes.toString("latin1", start + 5, end).replaceAll("\0", "·");
  }
}

/** Column names and types, without the oids of tables. */
function names(bytes: Buffer, from: number, count: number): string {
  const columns: string[] = [];
  let at = from;
  for (let i = 0; i < count; i++) {
    const stop = bytes.indexOf(0, at);
    columns.push(`${bytes.toString("utf8", at, stop)}:${bytes.readUInt32BE(stop + 7)}`);
    at = stop + 19;
  }
  return columns.join(",");
}
