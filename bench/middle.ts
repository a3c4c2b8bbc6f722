/** The command line of the controls that stand where the proxy stands. */
import { createServer, type Socket } from "node:net";

export interface UpstreamPlace {
  readonly host: string;
  readonly port: number;
}

/** Listens on 127.0.0.1 or on a Unix socket, and says so on standard error; ends with SIGTERM. */
export function listenFor(serve: (client: Socket, upstream: UpstreamPlace) => void): void {
  const [host = "", port = "", where = ""] = process.argv.slice(2);
  const server = createServer({ allowHalfOpen: true, noDelay: true }, (client) =>
    serve(client, { host, port: Number(port) }),
  );
  const said = (): void => {
    process.stderr.write("listening\n");
  };
  if (where.startsWith("/")) server.listen(where, said);
  else server.listen(Number(where), "127.0.0.1", said);
}
