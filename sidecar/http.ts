/** The sidecar's HTTP port: the startup probe, and the state of ownership for people and metrics. No secrets, no writes. */
import { createServer, type ServerResponse } from "node:http";
import { STARTUP_PROBE_SECONDS } from "../lease/sidecarconfig.ts";
import type { Clock } from "../platform/clock.ts";

export interface SidecarState {
  /** This is what starts the application: it is served, or, if it is to be started early, held (INV-4). */
  readonly started: boolean;
  readonly state: string;
  readonly generation: number | null;
  readonly rejectedWrites: number;
  /** Connections of the application that wait for the raise. */
  readonly held: number;
}

export interface SidecarServerOptions {
  readonly port: number;
  readonly clock: Clock;
  readonly state: () => SidecarState;
  /** Resolves when `started` becomes true. */
  readonly whenStarted: Promise<void>;
}

/** Before the kubelet gives the probe up: an answer that is late is one that it has not heard. */
const PROBE_HELD_MS = (STARTUP_PROBE_SECONDS - 2) * 1000;

export async function startSidecarServer(options: SidecarServerOptions): Promise<{ stop(): Promise<void> }> {
  const { port, clock, state, whenStarted } = options;
  const held = new Set<() => void>();
  // Once for all: each probe of a standby, which may wait for weeks, would stay in memory by a wait of its own on this promise.
  void whenStarted.then(() => {
    for (const end of held) end();
  });
  const server = createServer(async (request, response) => {
    if (request.url === "/started") {
      if (!state().started) await hold(response, clock, held);
      const { started, state: text } = state();
      response.writeHead(started ? 200 : 503, { "content-type": "text/plain" }).end(`${text}\n`);
    } else if (request.url === "/status") {
      response.writeHead(200, { "content-type": "application/json" }).end(`${JSON.stringify(state())}\n`);
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

/** Until the application may start, the kubelet has gone away, or it would soon. */
function hold(response: ServerResponse, clock: Clock, held: Set<() => void>): Promise<void> {
  return new Promise((resolve) => {
    const end = (): void => {
      cancel();
      held.delete(end);
      resolve();
    };
    const cancel = clock.after(PROBE_HELD_MS, end);
    response.once("close", end);
    held.add(end);
  });
}
