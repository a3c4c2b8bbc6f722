/**
 * A process's connection to the modelled API server, as `HttpClient`: requests that may get lost on either way, watches
 * that fall silent when the network is cut. Lines of one watch keep their order.
 */
import type { IncomingHttpHeaders } from "node:http";
import { type HttpClient, HttpError, type HttpStream } from "../platform/http.ts";
import { type ApiServer, pluralOf } from "./apiserver.ts";
import type { Network } from "./network.ts";
import type { Process } from "./process.ts";

export const API = "apiserver";
const HEADERS: IncomingHttpHeaders = {};

export function kubeClient(process: Process, server: ApiServer, network: Network): HttpClient {
  return {
    request: ({ method, path, body, timeoutMs, signal }) => {
      const text = body === undefined ? undefined : JSON.stringify(body);
      const call = network.call(process, API, () =>
        server.handle(method, path, text === undefined ? undefined : JSON.parse(text), process.name),
      );
      return bounded(process, call, timeoutMs, signal);
    },
    stream: async ({ path, timeoutMs, silentMs, signal }) => {
      const lines = new Lines(process, silentMs, signal);
      const plural = pluralOf(path);
      // The order of what one stream says is kept, however late it is.
      let lastMs = 0;
      const opened = network.call(process, API, () =>
        server.watch(path, (line) => {
          const lagMs = network.lagMs(process.name, plural);
          lastMs = network.sendBehind(process, API, () => process.deliver(() => lines.push(line)), { lastMs, lagMs });
        }),
      );
      const answer = await bounded(process, opened, timeoutMs, signal);
      if (typeof answer === "function") {
        lines.onLeave = answer;
        return { status: 200, headers: HEADERS, lines: lines.read() } satisfies HttpStream;
      }
      return { ...answer, lines: null };
    },
    close: () => {},
  };
}

/** As platform/http.ts bounds a call. */
function bounded<T>(process: Process, call: Promise<T>, timeoutMs: number, signal?: AbortSignal): Promise<T> {
  const { promise, resolve, reject } = Promise.withResolvers<T>();
  const onAbort = (): void => reject(new HttpError("aborted", "given up by the caller", true, signal?.reason));
  const cancel = process.clock.after(timeoutMs, () => reject(new HttpError("timeout", "no answer in time", true)));
  if (signal?.aborted) onAbort();
  else signal?.addEventListener("abort", onAbort, { once: true });
  void call.then(resolve, reject);
  return promise.finally(() => {
    cancel();
    signal?.removeEventListener("abort", onAbort);
  });
}

class Lines {
  onLeave: () => void = () => {};
  readonly #process: Process;
  readonly #silentMs: number;
  readonly #signal: AbortSignal | undefined;
  readonly #waiting: (string | null)[] = [];
  #wake: () => void = () => {};

  constructor(process: Process, silentMs: number, signal: AbortSignal | undefined) {
    this.#process = process;
    this.#silentMs = silentMs;
    this.#signal = signal;
  }

  push(line: string | null): void {
    this.#waiting.push(line);
    this.#wake();
  }

  async *read(): AsyncGenerator<string, void, void> {
    try {
      for (;;) {
        while (this.#waiting.length === 0) await this.#more();
        const line = this.#waiting.shift();
        if (line === null || line === undefined) return;
        yield line;
      }
    } finally {
      this.onLeave();
    }
  }

  #more(): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#wake = resolve;
    return bounded(this.#process, promise, this.#silentMs, this.#signal);
  }
}
