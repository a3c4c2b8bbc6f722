/** The server's messages one by one, while nothing is in a hurry: for the start of a session. */
import type { Channel } from "./channel.ts";
import { type Action, DROP, Framer, type MessageHandler, ProtocolError } from "./framer.ts";

const MESSAGE_BYTES_MAX = 1024 * 1024;
/** Of all that the server says before its session is the client's. */
const START_BYTES_MAX = 16 * MESSAGE_BYTES_MAX;

interface Received {
  readonly type: number;
  readonly bytes: Buffer;
}

export class Mailbox implements MessageHandler {
  readonly #channel: Channel;
  readonly #framer = new Framer(this, { push: () => {} });
  readonly #received: Received[] = [];
  #wake: () => void = () => {};
  #failure: unknown;
  #taken = 0;

  constructor(channel: Channel) {
    this.#channel = channel;
    channel.onBytes = (bytes, start, end) => {
      try {
        this.#framer.feed(bytes, start, end);
      } catch (error) {
        this.#failure = error;
      }
      this.#wake();
    };
    channel.onEnd = () => {
      this.#failure ??= new Error("the server closed the connection");
      this.#wake();
    };
    if (channel.ended) channel.onEnd();
  }

  bytesNeeded(_type: number, total: number): number {
    if (total > MESSAGE_BYTES_MAX) throw new ProtocolError(`the server sends ${total} bytes while starting`);
    return total;
  }

  message(type: number, bytes: Buffer, start: number, end: number): Action {
    this.#taken += end - start;
    if (this.#taken > START_BYTES_MAX) throw new ProtocolError(`more than ${START_BYTES_MAX} bytes while starting`);
    this.#received.push({ type, bytes: Buffer.from(bytes.subarray(start, end)) });
    return DROP;
  }

  async next(): Promise<Received> {
    for (;;) {
      const received = this.#received.shift();
      if (received) return received;
      if (this.#failure) throw this.#failure;
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
  }

  /** What has come behind the messages that were taken, the beginning of one, too. Throws ProtocolError. */
  rest(): Buffer {
    if (this.#failure instanceof ProtocolError) throw this.#failure;
    return Buffer.concat([...this.#received.splice(0).map(({ bytes }) => bytes), this.#framer.unfinished]);
  }

  send(bytes: Buffer): void {
    this.#channel.push(bytes, 0, bytes.length);
    this.#channel.flush();
  }
}
