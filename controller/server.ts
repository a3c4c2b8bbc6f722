/** Health and metrics of the controller, for the kubelet and for Prometheus. */
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";

export interface HealthSource {
  /** null when ready, else why not. */
  readonly ready: () => string | null;
  readonly metrics: () => Record<string, number>;
}

export async function startHealthServer(
  port: number,
  source: HealthSource,
): Promise<{ port: number; stop(): Promise<void> }> {
  const server = createServer((request, response) => {
    const answer = (status: number, body: string): void => {
      response.writeHead(status, { "content-type": "text/plain; charset=utf-8" }).end(`${body}\n`);
    };
    if (request.url === "/healthz") return answer(200, "ok");
    if (request.url === "/readyz") {
      const reason = source.ready();
      return reason === null ? answer(200, "ok") : answer(503, reason);
    }
    if (request.url === "/metrics") {
      const lines = Object.entries(source.metrics()).map(([name, value]) => `${name} ${value}`);
      return answer(200, lines.join("\n"));
    }
    return answer(404, "not here: /healthz, /readyz, /metrics");
  });
  await new Promise<void>((resolve, reject) => {
    server.once("error", reject);
    server.listen(port, resolve);
  });
  return {
    port: (server.address() as AddressInfo).port,
    stop: () =>
      new Promise((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
}
