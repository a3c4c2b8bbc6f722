/** The name that a server is told when TLS is asked for as usual; with `sslnegotiation=direct` see socket.test.ts. */
import { createServer } from "node:net";
import { createSecureContext, TLSSocket } from "node:tls";
import { expect, onTestFinished, test } from "vitest";
import { makeCertificates } from "../testing/certificates.ts";
import { openSocket } from "./socket.ts";

test("a host's name is told, unless sslsni=0; an address is none", async () => {
  const certificates = makeCertificates();
  onTestFinished(() => certificates.remove());
  const cert = certificates.pem("server.crt");
  const secureContext = createSecureContext({ cert, key: certificates.pem("server.key") });
  const told: string[] = [];
  const server = createServer((raw) => {
    raw.once("data", () =>
      raw.write("S", () => {
        // Only called when there is a name.
        const SNICallback = (name: string, done: (error: null, context: typeof secureContext) => void): void => {
          told.push(name);
          done(null, secureContext);
        };
        new TLSSocket(raw, { isServer: true, secureContext, SNICallback }).on("error", () => {});
      }),
    );
  });
  onTestFinished(() => void server.close());
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as { port: number };
  for (const [host, sslSni, names] of [
    ["localhost", false, []],
    ["127.0.0.1", true, []],
    ["localhost", true, ["localhost"]],
  ] as const) {
    const address = { host, port, database: "d", user: "u", sslmode: "require", sslSni } as const;
    const way = { endpoint: { host, port }, ip: "127.0.0.1", tls: true };
    (await openSocket(address, way, new AbortController().signal)).destroy();
    expect(told).toEqual(names);
  }
});
