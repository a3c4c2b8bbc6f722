/**
 * A control: the least that a Node.js process in the middle can do with `socket.pipe`. Knows nothing of PostgreSQL.
 * `node bench/pipe.ts <host> <port> <path or port to listen on>`
 */
import { connect, type Socket } from "node:net";
import { listenFor } from "./middle.ts";

listenFor((client, upstream) => {
  const server = connect({ ...upstream, noDelay: true, allowHalfOpen: true });
  join(client, server);
  join(server, client);
});

function join(from: Socket, to: Socket): void {
  from.pipe(to);
  from.on("error", () => {});
  from.once("close", () => to.destroy());
}
