/**
 * The proxy without the fence, for the bench only: the product's socket layer (Channel) and message walking (Framer) in
 * both directions, with a handler that passes every message. No session is judged, nothing is put in front of anything.
 *
 * Not a mode of the product: what it lacks (the session's state, the permit, the fence) is what `fenced` costs beside it.
 * `node bench/unfenced.ts <host> <port> <path or port to listen on>`
 */
import { connect } from "node:net";
import { Channel } from "../sidecar/wire/channel.ts";
import { Framer, HEADER_BYTES, type MessageHandler, PASS } from "../sidecar/wire/framer.ts";
import { listenFor } from "./middle.ts";

const passAll: MessageHandler = { bytesNeeded: () => HEADER_BYTES, message: () => PASS };

listenFor((socket, upstream) => {
  const client = new Channel(socket);
  client.pause();
  const raw = connect({ ...upstream, noDelay: true, allowHalfOpen: true });
  raw.once("error", () => socket.destroy());
  raw.once("connect", () => {
    join(client, new Channel(raw));
    client.resume();
  });
});

function join(client: Channel, server: Channel): void {
  const fromClient = new Framer(passAll, server);
  const fromServer = new Framer(passAll, client);
  // As the Relay does after each chunk.
  const settle = (): void => {
    server.flush();
    client.flush();
    if (server.behind) client.pause();
    else client.resume();
    if (client.behind) server.pause();
    else server.resume();
  };
  const messages = (bytes: Buffer, start: number, end: number): void => {
    fromClient.feed(bytes, start, end);
    settle();
  };
  // The startup message has no type; whoever measures sends it whole and without asking for TLS before.
  client.onBytes = (bytes, start, end) => {
    const stop = Math.min(end, start + bytes.readUInt32BE(start));
    server.push(bytes, start, stop);
    client.onBytes = messages;
    messages(bytes, stop, end);
  };
  server.onBytes = (bytes, start, end) => {
    fromServer.feed(bytes, start, end);
    settle();
  };
  client.onDrain = settle;
  server.onDrain = settle;
  client.onEnd = () => server.end();
  server.onEnd = () => client.end();
}
