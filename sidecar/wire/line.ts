/**
 * The two ways in which a channel reads and writes its socket: through Node's stream (TLS), or below it, at the handle
 * (TCP and Unix sockets), which costs less than half of the time.
 *
 * The handle is NOT documented by Node: `_handle`, `useUserBuffer` and `process.binding` are what net.Socket itself is
 * made of. The project pins its Node.js; line.test.ts fails on one that lacks them, and a socket without them goes
 * through its stream.
 */
import { Socket } from "node:net";

/** What a channel does with what arrives. */
export interface LineEvents {
  /** `bytes[0..end)` are valid during the call only. */
  received(bytes: Buffer, end: number): void;
  /** The peer has ended its side, or the connection has failed; may be called again. */
  ended(): void;
  /** The oldest of the bytes that `write` kept is free again. */
  sent(): void;
}

export interface Line {
  /** Bytes that were written and that the network has not taken yet. */
  readonly unsent: number;
  /** True: taken at once, `bytes` is free again. False: it is in use until `sent`. */
  write(bytes: Buffer): boolean;
  pause(): void;
  resume(): void;
}

/** Whether `socket` goes below its stream. */
export const readsBelowTheStream = (socket: Socket): boolean => binding !== undefined && handleOf(socket) !== undefined;

/** Reads from now on. */
export function lineOf(socket: Socket, events: LineEvents): Line {
  socket.on("close", () => events.ended());
  // "close" follows with the same meaning.
  socket.on("error", () => {});
  const handle = binding && handleOf(socket);
  return binding && handle ? new HandleLine(socket, handle, binding, events) : new StreamLine(socket, events);
}

class StreamLine implements Line {
  readonly #socket: Socket;
  readonly #events: LineEvents;

  constructor(socket: Socket, events: LineEvents) {
    this.#socket = socket;
    this.#events = events;
    socket.on("data", (chunk: Buffer) => events.received(chunk, chunk.length));
    socket.on("end", () => events.ended());
  }

  get unsent(): number {
    return this.#socket.writableLength;
  }

  write(bytes: Buffer): boolean {
    if (this.#socket.destroyed || this.#socket.writableEnded) return true;
    this.#socket.write(bytes, () => this.#events.sent());
    return false;
  }

  pause(): void {
    this.#socket.pause();
  }

  resume(): void {
    this.#socket.resume();
  }
}

/** What net.Socket uses of its handle (libuv's stream). */
interface Handle {
  reading: boolean;
  onread: (this: Handle) => void;
  useUserBuffer(buffer: Buffer): void;
  readStart(): number;
  readStop(): number;
  writeBuffer(request: WriteRequest, bytes: Buffer): number;
}

interface WriteRequest {
  oncomplete: (status: number) => void;
}

interface StreamBinding {
  readonly WriteWrap: new () => WriteRequest;
  /** Results of the last call, by the indices below. */
  readonly streamBaseState: Int32Array;
  readonly kReadBytesOrError: number;
  readonly kLastWriteWasAsync: number;
}

const binding = streamBinding();

/** The handle of a connected TCP or Unix socket; undefined for TLS, and on a Node.js that has it no more. */
function handleOf(socket: Socket): Handle | undefined {
  if (Object.getPrototypeOf(socket) !== Socket.prototype) return undefined;
  const handle: unknown = Reflect.get(socket, "_handle");
  return isHandle(handle) ? handle : undefined;
}

function isHandle(value: unknown): value is Handle {
  const methods = ["useUserBuffer", "readStart", "readStop", "writeBuffer"];
  return (
    typeof value === "object" &&
    value !== null &&
    methods.every((name) => typeof Reflect.get(value, name) === "function")
  );
}

function streamBinding(): StreamBinding | undefined {
  const open: unknown = Reflect.get(process, "binding");
  if (typeof open !== "function") return undefined;
  const found: unknown = Reflect.apply(open, process, ["stream_wrap"]);
  return isStreamBinding(found) ? found : undefined;
}

function isStreamBinding(value: unknown): value is StreamBinding {
  if (typeof value !== "object" || value === null) return false;
  const state: unknown = Reflect.get(value, "streamBaseState");
  const numbers = ["kReadBytesOrError", "kLastWriteWasAsync"];
  return (
    typeof Reflect.get(value, "WriteWrap") === "function" &&
    state instanceof Int32Array &&
    numbers.every((name) => typeof Reflect.get(value, name) === "number")
  );
}

/** Every socket of the thread reads into this: what arrived is used up before the next read. */
const readBuffer = Buffer.allocUnsafeSlow(64 * 1024);

class HandleLine implements Line {
  readonly #socket: Socket;
  readonly #handle: Handle;
  readonly #binding: StreamBinding;
  readonly #events: LineEvents;
  /** Of no write that is under way; one is enough as long as writes are taken at once. */
  #spare: WriteRequest | undefined;
  #unsent = 0;

  constructor(socket: Socket, handle: Handle, stream: StreamBinding, events: LineEvents) {
    this.#socket = socket;
    this.#handle = handle;
    this.#binding = stream;
    this.#events = events;
    handle.useUserBuffer(readBuffer);
    handle.onread = () => {
      // Must return nothing: what it returned would be taken for the buffer of the next read.
      this.#read();
    };
    // net.Socket believes that it reads, and so leaves the handle alone.
    handle.reading = true;
    handle.readStart();
  }

  get unsent(): number {
    return this.#unsent;
  }

  write(bytes: Buffer): boolean {
    if (this.#socket.destroyed || this.#socket.writableEnded) return true;
    const request = this.#spare ?? new this.#binding.WriteWrap();
    const failed = this.#handle.writeBuffer(request, bytes) !== 0;
    const later = !failed && this.#binding.streamBaseState[this.#binding.kLastWriteWasAsync] === 1;
    this.#spare = later ? undefined : request;
    if (failed) this.#socket.destroy();
    if (!later) return true;
    this.#unsent += bytes.length;
    request.oncomplete = (status) => {
      this.#unsent -= bytes.length;
      if (status < 0) this.#socket.destroy();
      this.#events.sent();
    };
    return false;
  }

  pause(): void {
    if (!this.#socket.destroyed) this.#handle.readStop();
  }

  resume(): void {
    if (!this.#socket.destroyed) this.#handle.readStart();
  }

  #read(): void {
    const received = this.#binding.streamBaseState[this.#binding.kReadBytesOrError] as number;
    if (received > 0) return this.#events.received(readBuffer, received);
    if (received === 0) return;
    // The end of the stream or an error. What the socket does at "end" falls to us.
    this.#handle.readStop();
    if (received !== END_OF_STREAM || this.#socket.writableEnded) this.#socket.destroy();
    this.#events.ended();
  }
}

/** UV_EOF. */
const END_OF_STREAM = -4095;
