/** The sidecar's HTTP port: the startup probe, and the state of ownership for people and metrics. No secrets, no writes. */
import { createServer } from "node:http";

export interface SidecarState {
  /** The fence is raised in every database: this is what starts the application (INV-4). */
  readonly started: boolean;
  readonly state: string;
  readonly generation: number | null;
  readonly rejectedWrites: number;
}

export async function startSidecarServer(port: number, state: () => SidecarState): Promise<{ stop(): Promise<void> }> {
  const server = createServer((request, response) => {
    const now = state();
    if (request.url === "/started") {
      response.writeHead(now.started ? 200 : 503, { "content-type": "text/plain" }).end(`${now.state}\n`);
    } else if (request.url === "/status") {
      response.writeHead(200, { "content-type": "application/json" }).end(`${JSON.stringify(now)}\n`);
    } else {
      response.writeHead(404, { "content-type": "text/plain" }).end("not here: /started, /status\n");
    }
  });
  await new Promise<void>((resolve, reject) => {
    server.once("error", reject);
    server.listen(port, resolve);
  });
  return {
    stop: () =>
      new Promise((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
}
