import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { type AddressInfo, connect, createServer, type Server, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { Channel } from "./channel.ts";
import { readsBelowTheStream } from "./line.ts";

const BIG_BYTES = 8 * 1024 * 1024;

let directory = "";
let server: Server;
let peer: Socket;
let channel: Channel;
const received: Buffer[] = [];

/** `peer` is a plain socket; `channel` is what the proxy has of the other end. */
async function connectBoth(where: { port: number } | { path: string }): Promise<void> {
  received.length = 0;
  const accepted = new Promise<void>((resolve) => {
    server = createServer({ allowHalfOpen: true }, (socket) => {
      channel = new Channel(socket);
      channel.onBytes = (bytes, start, end) => received.push(Buffer.from(bytes.subarray(start, end)));
      resolve();
    });
  });
  await new Promise<void>((resolve) => void server.listen(where, () => resolve()));
  const address = server.address() as AddressInfo | string;
  peer = typeof address === "string" ? connect(address) : connect({ port: address.port, allowHalfOpen: true });
  peer.on("error", () => {});
  await Promise.all([once(peer, "connect"), accepted]);
}

const text = (): string => Buffer.concat(received).toString();
const send = (what: string): void => {
  channel.push(Buffer.from(what), 0, what.length);
  channel.flush();
};
const ended = (): Promise<void> =>
  new Promise((resolve) => {
    channel.onEnd = resolve;
  });
const arrives = (length: number): Promise<void> =>
  new Promise((resolve) => {
    const before = channel.onBytes;
    channel.onBytes = (bytes, start, end) => {
      before(bytes, start, end);
      if (Buffer.concat(received).length >= length) resolve();
    };
  });

beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), "line-"));
});

afterEach(() => {
  peer.destroy();
  channel.destroy();
  server.close();
  rmSync(directory, { recursive: true });
});

describe.each(["TCP", "Unix"])("%s", (kind) => {
  beforeEach(() => connectBoth(kind === "TCP" ? { port: 0 } : { path: join(directory, "socket") }));

  test("the Node.js that the project pins reads and writes below the stream", () => {
    expect(readsBelowTheStream(channel.socket)).toBe(true);
  });

  test("small writes arrive as one, in order, both ways", async () => {
    const got = arrives(6);
    peer.write("abc");
    peer.write("def");
    await got;
    expect(text()).toBe("abcdef");
    channel.push(Buffer.from("xx12"), 2, 4);
    channel.push(Buffer.from("34"), 0, 2);
    channel.flush();
    const [back] = (await once(peer, "data")) as [Buffer];
    expect(back.toString()).toBe("1234");
  });

  test("a peer that does not read leaves it behind until it reads; nothing is lost or reordered", async () => {
    const bytes = Buffer.alloc(BIG_BYTES, "0123456789");
    channel.push(bytes, 0, bytes.length);
    channel.flush();
    expect(channel.behind).toBe(true);
    const drained = new Promise<void>((resolve) => {
      channel.onDrain = () => {
        if (!channel.behind) resolve();
      };
    });
    const parts: Buffer[] = [];
    const complete = new Promise<void>((resolve) => {
      peer.on("data", (part: Buffer) => {
        parts.push(part);
        if (parts.reduce((sum, one) => sum + one.length, 0) === bytes.length) resolve();
      });
    });
    await Promise.all([drained, complete]);
    expect(Buffer.concat(parts).equals(bytes)).toBe(true);
  });

  test("what was pushed just before the end arrives before it", async () => {
    const bytes = Buffer.alloc(BIG_BYTES, "ab");
    channel.push(bytes, 0, bytes.length);
    channel.end();
    let count = 0;
    peer.on("data", (part: Buffer) => {
      count += part.length;
    });
    await once(peer, "end");
    expect(count).toBe(bytes.length);
  });

  test("paused, it reads nothing; resumed, it reads all", async () => {
    channel.pause();
    channel.pause();
    peer.write("one");
    const [answer] = await Promise.all([once(peer, "data"), Promise.resolve(send("still writes"))]);
    expect(String(answer[0])).toBe("still writes");
    expect(text()).toBe("");
    const got = arrives(3);
    channel.resume();
    await got;
    expect(text()).toBe("one");
  });

  test("the peer's end is told once; our side can still write, and its end closes both", async () => {
    let times = 0;
    const first = ended().then(() => times++);
    peer.end("last");
    await first;
    expect(text()).toBe("last");
    send("answer");
    const [back] = (await once(peer, "data")) as [Buffer];
    expect(back.toString()).toBe("answer");
    const closed = once(channel.socket, "close");
    channel.end();
    await closed;
    expect(times).toBe(1);
  });

  test("when we ended first, the peer's end closes the socket", async () => {
    const closed = once(channel.socket, "close");
    channel.end();
    peer.resume();
    await once(peer, "end");
    peer.end();
    await closed;
    expect(channel.ended).toBe(true);
  });

  test("a peer that goes while bytes are unsent ends the channel; later writes do nothing", async () => {
    const bytes = Buffer.alloc(BIG_BYTES);
    channel.push(bytes, 0, bytes.length);
    channel.flush();
    const gone = ended();
    if (kind === "TCP") peer.resetAndDestroy();
    else peer.destroy();
    await gone;
    send("nobody");
    channel.destroy();
    send("nobody");
    channel.pause();
    channel.resume();
    expect(channel.ended).toBe(true);
  });
});
