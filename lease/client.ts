/**
 * One Lease at the API server, by its name: all that a holder needs of Kubernetes, a sidecar as well as a controller.
 *
 * Does NOT decide anything: it says what the server said, and `unknown` when it cannot be known whether a write took
 * effect; then the holder reads and compares (INV-6). Nothing here throws, retries or waits beyond the time given.
 */
import { type HttpClient, HttpError, type HttpRequest, RETRY_AFTER_MS_MAX } from "../platform/http.ts";
import type { RawLease } from "./record.ts";

export interface LeaseName {
  readonly namespace: string;
  readonly name: string;
}

export type LeaseAnswer =
  | { kind: "ok"; lease: RawLease }
  | { kind: "notFound" }
  /** The Lease is not at the resource version that was given. */
  | { kind: "conflict" }
  /** The server did not do it, and says why: rights, policy, a wrong object, throttling. */
  | { kind: "refused"; status: number; message: string; retryAfterMs: number }
  /** No answer, or one that leaves open whether it was done; `sent` is false if the request never left. */
  | { kind: "unknown"; message: string; sent: boolean };

export type LeaseNews =
  | { kind: "lease"; lease: RawLease }
  | { kind: "deleted" }
  /** The server is there and nothing has changed. */
  | { kind: "quiet" }
  /** The last one: watch again; without a resource version if `gone`. */
  | { kind: "ended"; gone: boolean; message: string };

/** What a holder may do with its Lease: it never creates one (INV-6). */
export type LeaseApi = Pick<LeaseClient, "get" | "replace" | "watch">;

export interface WatchBounds {
  /** After which the server ends it. */
  readonly seconds?: number;
  /** Longest silence, after which it is given up. */
  readonly silentMs?: number;
}

/** Until a watch is open. */
const WATCH_OPEN_MS = 5000;
const WATCH_SECONDS = 300;
/** The server's bookmarks come each minute, the first one after up to two. */
export const SILENT_MS = 150_000;

export class LeaseClient {
  readonly #client: HttpClient;
  readonly #collection: string;
  readonly #path: string;
  readonly #name: string;

  constructor(client: HttpClient, { namespace, name }: LeaseName) {
    this.#client = client;
    this.#name = name;
    this.#collection = `/apis/coordination.k8s.io/v1/namespaces/${encodeURIComponent(namespace)}/leases`;
    this.#path = `${this.#collection}/${encodeURIComponent(name)}`;
  }

  get(timeoutMs: number): Promise<LeaseAnswer> {
    return this.#call({ method: "GET", path: this.#path, timeoutMs });
  }

  /**
   * Conditional on the version and UID in `lease`; throws if they are not there. Without the version it would overwrite
   * whatever is there; without the UID it could create: a PUT of a missing Lease does, if the sender may create. A
   * Lease that was deleted meanwhile answers `conflict`, and the read that follows `notFound`.
   */
  async replace(lease: RawLease, timeoutMs: number): Promise<LeaseAnswer> {
    const { resourceVersion, uid } = lease.metadata;
    if (!resourceVersion || !uid) throw new Error("INV-6: a Lease is only replaced by resourceVersion and UID");
    return this.#call({ method: "PUT", path: this.#path, body: lease, timeoutMs });
  }

  /** `conflict` if there is one already. */
  create(lease: RawLease, timeoutMs: number): Promise<LeaseAnswer> {
    return this.#call({ method: "POST", path: this.#collection, body: lease, timeoutMs });
  }

  /**
   * The Lease as it changes. Without a resource version it begins with the present state, and works before the
   * Lease exists. Ends with `ended`, except when the signal ends it.
   */
  async *watch(
    resourceVersion: string | undefined,
    signal: AbortSignal,
    { seconds = WATCH_SECONDS, silentMs = SILENT_MS }: WatchBounds = {},
  ): AsyncGenerator<LeaseNews, void, void> {
    try {
      const query = new URLSearchParams({
        watch: "true",
        allowWatchBookmarks: "true",
        fieldSelector: `metadata.name=${this.#name}`,
        timeoutSeconds: String(seconds),
        ...(resourceVersion !== undefined && { resourceVersion }),
      });
      const path = `${this.#collection}?${query}`;
      const stream = await this.#client.stream({ path, timeoutMs: WATCH_OPEN_MS, silentMs, signal });
      if (stream.lines === null) {
        yield { kind: "ended", gone: stream.status === 410, message: messageOf(stream.status, stream.body) };
        return;
      }
      for await (const line of stream.lines) {
        const news = newsOf(line);
        yield news;
        if (news.kind === "ended") return;
      }
      yield { kind: "ended", gone: false, message: "the server ended the watch" };
    } catch (error) {
      // Silence and broken lines leave a doubt about what was missed.
      const gone = error instanceof HttpError && (error.kind === "timeout" || error.kind === "malformed");
      if (!signal.aborted) yield { kind: "ended", gone, message: describe(error) };
    }
  }

  close(): void {
    this.#client.close();
  }

  /** A server that answers in time need not open a connection in the same time: else one that was lost would never be replaced. */
  async #call(request: HttpRequest): Promise<LeaseAnswer> {
    try {
      const { status, headers, body } = await this.#client.request({ ...request, connectsApart: true });
      if (status === 200 || status === 201) return { kind: "ok", lease: body as RawLease };
      // Loss is final, so it takes the API server's word about this object: not the 404 of whoever else answers, or of
      // a server that does not serve the path yet.
      if (status === 404 && (body as { reason?: unknown } | null)?.reason === "NotFound") return { kind: "notFound" };
      if (status === 409) return { kind: "conflict" };
      const message = messageOf(status, body);
      if (status >= 500) return { kind: "unknown", message, sent: true };
      const askedMs = 1000 * (Number(headers["retry-after"]) || 0);
      return { kind: "refused", status, message, retryAfterMs: Math.min(askedMs, RETRY_AFTER_MS_MAX) };
    } catch (error) {
      return { kind: "unknown", message: describe(error), sent: error instanceof HttpError && error.sent };
    }
  }
}

function newsOf(line: string): LeaseNews {
  let event: { type: string; object: RawLease & { code?: number } };
  try {
    event = JSON.parse(line);
  } catch {
    return { kind: "ended", gone: true, message: "a line of the watch is not JSON" };
  }
  if (event.type === "BOOKMARK") return { kind: "quiet" };
  if (event.type === "DELETED") return { kind: "deleted" };
  if (event.type === "ERROR") {
    const { code = 500 } = event.object;
    return { kind: "ended", gone: true, message: messageOf(code, event.object) };
  }
  return { kind: "lease", lease: event.object };
}

function messageOf(status: number, body: unknown): string {
  const message = (body as { message?: unknown } | null)?.message;
  return `${status}: ${typeof message === "string" ? message : String(body ?? "").slice(0, 200)}`;
}

function describe(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
