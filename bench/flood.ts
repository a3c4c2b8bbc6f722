/** A client that sends and takes more than it could keep: it counts messages and throws their bytes away. */
import { once } from "node:events";
import { setTimeout as delay } from "node:timers/promises";
import { type Action, DROP, Framer, HEADER_BYTES, type MessageHandler } from "../sidecar/wire/framer.ts";
import { BACK, copyData, copyDone, cstring, execute, FRONT, parse, query, sync } from "../sidecar/wire/messages.ts";
import { RawClient } from "../testing/rawclient.ts";
import type { Place } from "./pgbenchrun.ts";

export const MIB = 2 ** 20;
/** Of what is sent in pieces: a row of COPY each. */
const PIECE = Buffer.alloc(MIB, "x").fill("\n", MIB - 1);
/** A slow reader: it sleeps at the start until everything in between is full, then again and again. */
const STALL_MS = 1_000;
const NAP_MS = 10;
const NAP_EACH_BYTES = 4 * MIB;

export class Flood implements MessageHandler {
  readonly #socket: RawClient["socket"];
  readonly #framer = new Framer(this, { push: () => {} });
  #wake: () => void = () => {};
  #readies = 0;
  #errors = 0;
  #taken = 0;
  #napAt = Number.POSITIVE_INFINITY;

  private constructor(client: RawClient) {
    this.#socket = client.socket;
    // From here on nothing is kept.
    this.#socket.removeAllListeners("data");
    this.#socket.on("data", (chunk: Buffer) => this.#take(chunk));
    this.#socket.once("close", () => {
      this.#errors++;
      this.#wake();
    });
  }

  static async open({ host, port, user, database }: Place): Promise<Flood> {
    return new Flood(await RawClient.open({ host, port, user, database }));
  }

  bytesNeeded(): number {
    return HEADER_BYTES;
  }

  message(type: number): Action {
    if (type === BACK.ready) this.#readies++;
    if (type === BACK.error) this.#errors++;
    return DROP;
  }

  /** Reads all of the answer, slowly. */
  async takeSlowly(sql: string): Promise<void> {
    this.#socket.pause();
    this.#socket.write(query(sql));
    await delay(STALL_MS);
    this.#napAt = this.#taken + NAP_EACH_BYTES;
    this.#socket.resume();
    await this.#answered(1);
    this.#napAt = Number.POSITIVE_INFINITY;
  }

  /** `sql` ends with a COPY FROM STDIN; as many MiB follow. */
  async copyIn(sql: string, mib: number): Promise<void> {
    const data = copyData(PIECE);
    await this.#send(query(sql));
    for (let i = 0; i < mib; i++) await this.#send(data);
    await this.#send(copyDone());
    await this.#answered(1);
  }

  /** One text parameter of so many MiB for `sql`. */
  async sendParameter(sql: string, mib: number): Promise<void> {
    const bytes = mib * MIB;
    const head = Buffer.concat([cstring(""), cstring(""), uint16(0), uint16(1), uint32(bytes)]);
    const results = uint16(0);
    const bindHead = Buffer.concat([Buffer.from([FRONT.bind]), uint32(4 + head.length + bytes + results.length), head]);
    await this.#send(Buffer.concat([parse("", sql), bindHead]));
    for (let i = 0; i < mib; i++) await this.#send(PIECE);
    await this.#send(Buffer.concat([results, execute(""), sync()]));
    await this.#answered(1);
  }

  end(): void {
    this.#socket.destroy();
  }

  #take(chunk: Buffer): void {
    this.#taken += chunk.length;
    this.#framer.feed(chunk, 0, chunk.length);
    this.#wake();
    if (this.#taken < this.#napAt) return;
    this.#napAt = this.#taken + NAP_EACH_BYTES;
    this.#socket.pause();
    void delay(NAP_MS).then(() => this.#socket.resume());
  }

  async #send(bytes: Buffer): Promise<void> {
    if (!this.#socket.write(bytes)) await once(this.#socket, "drain");
  }

  async #answered(readies: number): Promise<void> {
    const wanted = this.#readies + readies;
    while (this.#readies < wanted && this.#errors === 0) {
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
    if (this.#errors > 0) throw new Error("the server refused it, or the connection was closed");
  }
}

function uint16(value: number): Buffer {
  const bytes = Buffer.alloc(2);
  bytes.writeUInt16BE(value);
  return bytes;
}

function uint32(value: number): Buffer {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32BE(value);
  return bytes;
}
