/**
 * JSON over HTTP(S) on Node's own client, and a GET that yields lines (for watches).
 *
 * Does NOT retry a write and does NOT know whether one took effect when its answer is missing: such an error has
 * `sent: true`, and the caller reads before it does anything else (INV-6).
 *
 * Every call has a time limit that covers all of it: credentials, connect, TLS, answer, body. A connection over which a server
 * has failed (5xx) is not kept: behind one address there may be others that work. Credentials are asked for
 * anew for each request, because tokens and CAs are rotated under a running process.
 */
import http, { type IncomingHttpHeaders, type IncomingMessage, type RequestOptions } from "node:http";
import https from "node:https";
import type { Clock } from "./clock.ts";

/** Longest answer, and longest line of a stream: above any Kubernetes object and any page of 500 of the usual size. */
const BODY_BYTES_MAX = 64 * 2 ** 20;
const LINE_CHARS_MAX = 8 * 2 ** 20;
/** Above all that one process has under way (controller/kube/queue.ts): what found none free would wait for calls that hang, a renewal too. */
const SOCKETS_MAX = 256;
/** An idle connection is closed by us before a server or a load balancer does it in silence. */
const IDLE_SOCKET_MS = 30_000;
/** First probe of a silent peer; the following ones come each second, so a dead machine is noticed in about 20 s … */
const TCP_KEEPALIVE_MS = 10_000;
/** … and in 6 s by the reader of a stream, who has nothing else to notice it by. */
const STREAM_PROBES = { firstMs: 2_000, intervalMs: 1_000, lostMax: 4 };

/** A longer `Retry-After`, as of a gateway in front of the server, would leave who heeds it blind long after that has come back. */
export const RETRY_AFTER_MS_MAX = 60_000;

export type HttpFailure =
  /** No complete answer in time, or a stream that fell silent. */
  | "timeout"
  /** Nobody took the connection: refused, no route, unknown name. */
  | "refused"
  /** The connection broke. */
  | "reset"
  /** The peer is not whom it claims to be, or speaks no TLS. */
  | "tls"
  /** The caller's signal. */
  | "aborted"
  /** The answer is too long or no JSON. */
  | "malformed";

export class HttpError extends Error {
  readonly kind: HttpFailure;
  /** True if the request may have reached the server: a write may have taken effect. */
  readonly sent: boolean;

  constructor(kind: HttpFailure, message: string, sent: boolean, cause?: unknown) {
    super(message, cause === undefined ? {} : { cause });
    this.name = "HttpError";
    this.kind = kind;
    this.sent = sent;
  }
}

/** What one request presents: headers (a bearer token) and TLS material. */
export interface Credentials {
  headers?: Record<string, string>;
  tls?: Pick<https.RequestOptions, "ca" | "cert" | "key" | "pfx" | "passphrase" | "servername" | "rejectUnauthorized">;
  /** Instead of the client's own connections, for a kubeconfig that goes through a proxy. */
  agent?: http.Agent;
}

export interface HttpRequest {
  method: "GET" | "POST" | "PUT" | "PATCH" | "DELETE";
  /** Absolute path with its query. */
  path: string;
  /** Sent as JSON. */
  body?: unknown;
  contentType?: string;
  /** For the whole call. */
  timeoutMs: number;
  /** As long again for a connection that must be opened first: `timeoutMs` then begins anew when it is there. */
  connectsApart?: boolean;
  signal?: AbortSignal;
}

export interface StreamRequest {
  path: string;
  /** Until the answer's headers are here. */
  timeoutMs: number;
  /** Longest silence between two pieces of the stream. */
  silentMs: number;
  signal?: AbortSignal;
}

export interface HttpResponse {
  status: number;
  headers: IncomingHttpHeaders;
  /** Parsed if the server calls it JSON, else its text. */
  body: unknown;
}

/** A 200 with its lines, to be read to the end or left with `break`; any other status with its body. */
export type HttpStream = ({ lines: AsyncGenerator<string, void, void> } | { lines: null; body: unknown }) & {
  status: number;
  headers: IncomingHttpHeaders;
};

export interface HttpClient {
  /** Any status is a result; throws only `HttpError`. */
  request(request: HttpRequest): Promise<HttpResponse>;
  stream(request: StreamRequest): Promise<HttpStream>;
  /** Closes every connection, used ones too. */
  close(): void;
}

export interface HttpClientOptions {
  /** Scheme, host, port, and a path prefix if there is one. */
  baseUrl: string;
  credentials?: () => Credentials | Promise<Credentials>;
  clock: Clock;
}

export function httpClient(options: HttpClientOptions): HttpClient {
  const { clock } = options;
  const base = new URL(options.baseUrl);
  const secure = base.protocol === "https:";
  const agent = new (secure ? https : http).Agent({
    keepAlive: true,
    keepAliveMsecs: TCP_KEEPALIVE_MS,
    maxSockets: SOCKETS_MAX,
    timeout: IDLE_SOCKET_MS,
  });
  async function open(request: Omit<HttpRequest, "timeoutMs">, limit: Limit): Promise<IncomingMessage> {
    const credentials = await limit.race(Promise.resolve(options.credentials?.() ?? {}));
    const body = request.body === undefined ? undefined : Buffer.from(JSON.stringify(request.body));
    const requestOptions: https.RequestOptions = {
      ...credentials.tls,
      agent: credentials.agent ?? agent,
      method: request.method,
      hostname: base.hostname.replace(/^\[|\]$/g, ""),
      port: base.port,
      path: base.pathname.replace(/\/$/, "") + request.path,
      headers: {
        accept: "application/json",
        "user-agent": "fencedjob",
        ...(body && { "content-type": request.contentType ?? "application/json", "content-length": body.length }),
        ...credentials.headers,
      },
    };
    const first = await answer(secure, requestOptions, body, limit);
    if (!("stale" in first)) return first;
    // The server had closed the kept connection; a read can be asked again, a write never.
    if (request.method !== "GET") throw first.stale;
    const second = await answer(secure, { ...requestOptions, agent: credentials.agent ?? false }, body, limit);
    if ("stale" in second) throw second.stale;
    return second;
  }

  return {
    async request(request) {
      const limit = new Limit(clock, request, `${request.method} ${base.host}${request.path.split("?")[0]}`);
      try {
        const response = await open(request, limit);
        return { status: response.statusCode ?? 0, headers: response.headers, body: await bodyOf(response) };
      } catch (error) {
        throw limit.classify(error);
      } finally {
        limit.end();
      }
    },
    async stream(request) {
      const limit = new Limit(clock, request, `GET ${base.host}${request.path.split("?")[0]}`);
      let streams = false;
      try {
        const response = await open({ ...request, method: "GET" }, limit);
        const head = { status: response.statusCode ?? 0, headers: response.headers };
        if (head.status !== 200) return { ...head, lines: null, body: await bodyOf(response) };
        limit.stopTimer();
        streams = true;
        const { firstMs, intervalMs, lostMax } = STREAM_PROBES;
        response.socket.setKeepAlive(true, firstMs, intervalMs, lostMax);
        return { ...head, lines: linesOf(response, limit, request.silentMs) };
      } catch (error) {
        throw limit.classify(error);
      } finally {
        if (!streams) limit.end();
      }
    },
    close: () => agent.destroy(),
  };
}

/** The bounds of one call: its time limit, the caller's signal, and what is known about how far it came. */
class Limit {
  sent = false;
  readonly #clock: Clock;
  readonly #what: string;
  readonly #signal: AbortSignal | undefined;
  readonly #request: Pick<HttpRequest, "timeoutMs" | "connectsApart">;
  readonly #aborts = new AbortController();
  #cancelTimer: () => void;

  constructor(clock: Clock, request: Pick<HttpRequest, "timeoutMs" | "connectsApart" | "signal">, what: string) {
    this.#clock = clock;
    this.#what = what;
    this.#request = request;
    this.#signal = request.signal;
    this.#cancelTimer = this.#arm(request.timeoutMs, this.#late);
    if (this.#signal?.aborted) this.#onSignal();
    else this.#signal?.addEventListener("abort", this.#onSignal, { once: true });
  }

  readonly #onSignal = (): void =>
    this.#aborts.abort(
      new HttpError("aborted", `${this.#what}: given up by the caller`, this.sent, this.#signal?.reason),
    );

  get #late(): string {
    return `no answer within ${Math.round(this.#request.timeoutMs)} ms`;
  }

  /** A connection was opened, and the request goes out. */
  connected(): void {
    this.sent = true;
    if (!this.#request.connectsApart) return;
    this.#cancelTimer();
    this.#cancelTimer = this.#arm(this.#request.timeoutMs, this.#late);
  }

  #arm(ms: number, message: string): () => void {
    return this.#clock.after(ms, () =>
      this.#aborts.abort(new HttpError("timeout", `${this.#what}: ${message}`, this.sent)),
    );
  }

  /** Restarts the timer as a limit on silence. */
  await<T>(ms: number, promise: Promise<T>): Promise<T> {
    this.#cancelTimer = this.#arm(ms, `the stream was silent for ${Math.round(ms)} ms`);
    return promise.finally(this.#cancelTimer);
  }

  /** `promise`, or this limit's error if that comes first. */
  race<T>(promise: Promise<T>): Promise<T> {
    const { promise: aborted, reject } = Promise.withResolvers<never>();
    const stop = this.onAbort(reject);
    return Promise.race([promise, aborted]).finally(stop);
  }

  onAbort(fn: (reason: Error) => void): () => void {
    const { signal } = this.#aborts;
    const listener = (): void => fn(signal.reason);
    if (signal.aborted) listener();
    else signal.addEventListener("abort", listener, { once: true });
    return () => signal.removeEventListener("abort", listener);
  }

  stopTimer(): void {
    this.#cancelTimer();
  }

  end(): void {
    this.#cancelTimer();
    this.#signal?.removeEventListener("abort", this.#onSignal);
  }

  classify(error: unknown): HttpError {
    if (this.#aborts.signal.aborted) return this.#aborts.signal.reason;
    if (error instanceof HttpError) return error;
    const code = String((error as NodeJS.ErrnoException)?.code ?? "");
    const message = error instanceof Error && error.message ? error.message : code;
    return new HttpError(failureOf(code), `${this.#what}: ${message}`, this.sent, error);
  }
}

function failureOf(code: string): HttpFailure {
  if (/^(ECONNREFUSED|EHOSTUNREACH|ENETUNREACH|ENOTFOUND|EAI_AGAIN)$/.test(code)) return "refused";
  if (/^(EPROTO|ERR_TLS|ERR_SSL|CERT_|UNABLE_TO_|DEPTH_ZERO|SELF_SIGNED|HOSTNAME_)/.test(code)) return "tls";
  return "reset";
}

/** Sends one request; `stale` is the error of a kept connection that the server had closed meanwhile. */
function answer(
  secure: boolean,
  options: RequestOptions,
  body: Buffer | undefined,
  limit: Limit,
): Promise<IncomingMessage | { stale: Error }> {
  return new Promise((resolve, reject) => {
    const request = (secure ? https : http).request(options);
    let stop = (): void => {};
    request.on("socket", (socket) => {
      if (!socket.connecting) limit.sent = true;
      else socket.once(secure ? "secureConnect" : "connect", () => limit.connected());
    });
    request.on("response", (response) => {
      stop();
      const stopResponse = limit.onAbort((reason) => response.destroy(reason));
      response.once("close", stopResponse);
      const { socket, statusCode = 0 } = response;
      if (statusCode >= 500) response.once("end", () => socket.destroy());
      resolve(response);
    });
    request.on("error", (error: NodeJS.ErrnoException) => {
      stop();
      if (request.reusedSocket && (error.code === "ECONNRESET" || error.code === "EPIPE")) resolve({ stale: error });
      else reject(error);
    });
    stop = limit.onAbort((reason) => request.destroy(reason));
    request.end(body);
  });
}

async function bodyOf(response: IncomingMessage): Promise<unknown> {
  const chunks: Buffer[] = [];
  let bytes = 0;
  for await (const chunk of response) {
    bytes += chunk.length;
    if (bytes > BODY_BYTES_MAX) throw new HttpError("malformed", `answer longer than ${BODY_BYTES_MAX} bytes`, true);
    chunks.push(chunk);
  }
  const text = Buffer.concat(chunks).toString("utf8");
  if (!response.headers["content-type"]?.includes("json")) return text;
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new HttpError("malformed", `answer with status ${response.statusCode} is not JSON`, true, error);
  }
}

async function* linesOf(response: IncomingMessage, limit: Limit, silentMs: number): AsyncGenerator<string, void, void> {
  response.setEncoding("utf8");
  const chunks: AsyncIterator<string> = response[Symbol.asyncIterator]();
  let rest = "";
  try {
    for (;;) {
      // Only waiting counts as silence, not the time that the reader takes.
      const step = await limit.await(silentMs, chunks.next());
      if (step.done) break;
      let from = rest.length;
      rest += step.value;
      let start = 0;
      for (let end = rest.indexOf("\n", from); end >= 0; end = rest.indexOf("\n", from)) {
        if (end > start) yield rest.slice(start, end);
        start = from = end + 1;
      }
      rest = rest.slice(start);
      if (rest.length > LINE_CHARS_MAX) throw new HttpError("malformed", "line of a stream too long", true);
    }
    if (rest !== "") yield rest;
  } catch (error) {
    throw limit.classify(error);
  } finally {
    limit.end();
    response.destroy();
  }
}
