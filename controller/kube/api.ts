/**
 * The Kubernetes API as raw JSON: one table of resources, from which list, watch and object paths are built alike.
 *
 * Does NOT retry, except that a throttled request (429, not executed) is sent again after the time the server asked for,
 * within the call's own limit. Throws `ApiError` for an answer and `HttpError` for a missing one; see errors.ts.
 */
import type { Clock } from "../../platform/clock.ts";
import { type HttpClient, HttpError, type HttpRequest } from "../../platform/http.ts";
import { apiError, watchError } from "./errors.ts";
import type { ObjectKey, ObjectLike, RawObject } from "./objects.ts";

export interface Resource {
  group: string;
  version: string;
  plural: string;
  kind: string;
  namespaced: boolean;
}

const resource = (group: string, version: string, plural: string, kind: string, namespaced = true): Resource => ({
  group,
  version,
  plural,
  kind,
  namespaced,
});

export const RESOURCES = {
  fencedJobs: resource("fencedjob.dev", "v1alpha1", "fencedjobs", "FencedJob"),
  pods: resource("", "v1", "pods", "Pod"),
  leases: resource("coordination.k8s.io", "v1", "leases", "Lease"),
  secrets: resource("", "v1", "secrets", "Secret"),
  configMaps: resource("", "v1", "configmaps", "ConfigMap"),
  serviceAccounts: resource("", "v1", "serviceaccounts", "ServiceAccount"),
  roles: resource("rbac.authorization.k8s.io", "v1", "roles", "Role"),
  roleBindings: resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding"),
  events: resource("events.k8s.io", "v1", "events", "Event"),
  namespaces: resource("", "v1", "namespaces", "Namespace", false),
  nodes: resource("", "v1", "nodes", "Node", false),
  crds: resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", false),
} as const;

/** What `apiVersion` says for objects of this resource. */
export const apiVersionOf = ({ group, version }: Resource): string => (group === "" ? version : `${group}/${version}`);

export interface CallOptions {
  /** For the whole call, waits for a throttling server included. */
  timeoutMs?: number;
  signal?: AbortSignal;
}

export interface WriteOptions extends CallOptions {
  subresource?: "status" | "scale" | "token" | "eviction" | "ephemeralcontainers";
  /** All checks and admission, nothing stored. */
  dryRun?: boolean;
  /** `Strict` refuses unknown and duplicate fields. */
  fieldValidation?: "Strict" | "Warn" | "Ignore";
}

export interface DeleteOptions extends CallOptions {
  /** Conflict unless the object still is this one. */
  preconditions?: { uid?: string; resourceVersion?: string };
  propagationPolicy?: "Foreground" | "Background" | "Orphan";
  gracePeriodSeconds?: number;
  dryRun?: boolean;
}

/** Which objects of a resource. */
export interface Selection {
  /** All namespaces without it. */
  namespace?: string;
  labelSelector?: string;
  fieldSelector?: string;
}

export interface WatchOptions extends Selection {
  resourceVersion: string;
  /** After which the server ends the watch. */
  timeoutSeconds: number;
  /** Longest time without event or bookmark. */
  silentMs: number;
  signal?: AbortSignal;
}

export interface WatchEvent<T> {
  type: "ADDED" | "MODIFIED" | "DELETED" | "BOOKMARK";
  object: T;
}

const CALL_MS = 10_000;
/** Bounds the work of the server and the size of one answer. */
const PAGE_LIMIT = 500;
/** Without a Retry-After, and at least. */
const THROTTLED_MS = 1000;

export class KubeApi {
  readonly #client: HttpClient;
  readonly #clock: Clock;
  readonly #fieldManager: string;

  constructor(client: HttpClient, clock: Clock, fieldManager: string) {
    this.#client = client;
    this.#clock = clock;
    this.#fieldManager = fieldManager;
  }

  get<T extends ObjectLike = RawObject>(resource: Resource, key: ObjectKey, options: CallOptions = {}): Promise<T> {
    return this.#call({ method: "GET", path: pathOf(resource, key.namespace, key.name) }, options);
  }

  /** Page after page, consistent as one read; `Gone` if the pages took too long. */
  async list<T extends ObjectLike = RawObject>(
    resource: Resource,
    selection: Selection = {},
    options: CallOptions & { limit?: number } = {},
  ): Promise<{ items: T[]; resourceVersion: string }> {
    const items: T[] = [];
    const path = pathOf(resource, selection.namespace);
    const filter = { labelSelector: selection.labelSelector, fieldSelector: selection.fieldSelector };
    let next: string | undefined;
    for (;;) {
      const page: { items: T[] | null; metadata: { resourceVersion: string; continue?: string } } = await this.#call(
        { method: "GET", path: path + query({ ...filter, limit: options.limit ?? PAGE_LIMIT, continue: next }) },
        options,
      );
      // Items of a list lack what items of a watch have.
      const type = { apiVersion: apiVersionOf(resource), kind: resource.kind };
      for (const item of page.items ?? []) items.push({ ...type, ...item });
      next = page.metadata.continue;
      if (!next) return { items, resourceVersion: page.metadata.resourceVersion };
    }
  }

  /** Where the server's own count is now: one small consistent read. */
  async version(resource: Resource, { namespace }: Selection = {}, options: CallOptions = {}): Promise<string> {
    const path = pathOf(resource, namespace) + query({ limit: 1 });
    const page: { metadata: { resourceVersion: string } } = await this.#call({ method: "GET", path }, options);
    return page.metadata.resourceVersion;
  }

  create<T extends ObjectLike>(resource: Resource, object: T, options: WriteOptions = {}): Promise<T> {
    const { namespace, name } = object.metadata;
    const path = pathOf(resource, namespace, options.subresource && name, options.subresource);
    return this.#write("POST", path, object, options);
  }

  /**
   * Replaces the object that was read; a conflict if it has changed or was deleted. Throws without its version and UID:
   * the one would overwrite what others wrote, the other could create (a PUT of a missing Lease does).
   */
  async update<T extends ObjectLike>(resource: Resource, object: T, options: WriteOptions = {}): Promise<T> {
    const { namespace, name = "", uid, resourceVersion } = object.metadata;
    if (!uid || !resourceVersion) throw new Error(`${resource.plural}: an update needs uid and resourceVersion`);
    return this.#write("PUT", pathOf(resource, namespace, name, options.subresource), object, options);
  }

  /** JSON merge patch; with `metadata.resourceVersion` in it, conditional on that. */
  patch<T extends ObjectLike = RawObject>(
    resource: Resource,
    key: ObjectKey,
    patch: object,
    options: WriteOptions = {},
  ): Promise<T> {
    const path = pathOf(resource, key.namespace, key.name, options.subresource);
    return this.#write("PATCH", path, patch, options, { contentType: "application/merge-patch+json" });
  }

  /** Server-side apply of the fields that we own; `force` takes those of others. */
  apply<T extends ObjectLike>(
    resource: Resource,
    object: T,
    options: WriteOptions & { force?: boolean } = {},
  ): Promise<T> {
    const { namespace, name = "" } = object.metadata;
    const path = pathOf(resource, namespace, name, options.subresource);
    const typed = { apiVersion: apiVersionOf(resource), kind: resource.kind, ...object };
    return this.#write("PATCH", path, typed, options, {
      contentType: "application/apply-patch+yaml",
      query: { force: options.force },
    });
  }

  async delete(resource: Resource, key: ObjectKey, options: DeleteOptions = {}): Promise<void> {
    const { preconditions, propagationPolicy, gracePeriodSeconds, dryRun } = options;
    const body = {
      apiVersion: "v1",
      kind: "DeleteOptions",
      preconditions,
      propagationPolicy,
      gracePeriodSeconds,
      ...(dryRun && { dryRun: ["All"] }),
    };
    await this.#call({ method: "DELETE", path: pathOf(resource, key.namespace, key.name), body }, options);
  }

  /** Events in order, bookmarks too. An ERROR event is thrown; a clean end is the end of the iteration. */
  async *watch<T extends ObjectLike = RawObject>(
    resource: Resource,
    options: WatchOptions,
  ): AsyncGenerator<WatchEvent<T>, void, void> {
    const path = pathOf(resource, options.namespace);
    const what = `watch ${path}`;
    const { resourceVersion, labelSelector, fieldSelector, timeoutSeconds, silentMs, signal } = options;
    const stream = await this.#client.stream({
      path:
        path +
        query({
          watch: true,
          allowWatchBookmarks: true,
          resourceVersion,
          timeoutSeconds,
          labelSelector,
          fieldSelector,
        }),
      timeoutMs: CALL_MS,
      silentMs,
      ...(signal && { signal }),
    });
    if (stream.lines === null) throw apiError(what, stream);
    for await (const line of stream.lines) {
      const event = parseEvent<T>(what, line);
      if (event.type === "ERROR") throw watchError(what, event.object);
      yield { type: event.type, object: event.object };
    }
  }

  #write<T>(
    method: "POST" | "PUT" | "PATCH",
    path: string,
    body: unknown,
    options: WriteOptions,
    extra: { contentType?: string; query?: Query } = {},
  ): Promise<T> {
    const { dryRun, fieldValidation } = options;
    const parameters = { fieldManager: this.#fieldManager, dryRun: dryRun ? "All" : undefined, fieldValidation };
    const contentType = extra.contentType ?? "application/json";
    return this.#call({ method, path: path + query({ ...parameters, ...extra.query }), body, contentType }, options);
  }

  async #call<T>(request: Omit<HttpRequest, "timeoutMs">, options: CallOptions): Promise<T> {
    const { signal } = options;
    const endMs = this.#clock.monoMs() + (options.timeoutMs ?? CALL_MS);
    for (;;) {
      const timeoutMs = Math.max(0, endMs - this.#clock.monoMs());
      const response = await this.#client.request({ ...request, timeoutMs, ...(signal && { signal }) });
      if (response.status >= 200 && response.status < 300) return response.body as T;
      const error = apiError(`${request.method} ${request.path.split("?")[0]}`, response);
      const waitMs = Math.max(THROTTLED_MS, error.retryAfterMs ?? 0);
      if (error.status !== 429 || this.#clock.monoMs() + waitMs >= endMs) throw error;
      await this.#clock.sleep(waitMs, signal);
    }
  }
}

export function pathOf(resource: Resource, namespace?: string, name?: string, subresource?: string): string {
  // An empty name would be the path of the whole collection: a delete of everything.
  if (name === "" || namespace === "") throw new Error(`${resource.plural}: empty name or namespace`);
  const root = resource.group === "" ? `/api/${resource.version}` : `/apis/${apiVersionOf(resource)}`;
  const inside = resource.namespaced && namespace !== undefined ? `/namespaces/${encodeURIComponent(namespace)}` : "";
  const one = name === undefined ? "" : `/${encodeURIComponent(name)}`;
  return `${root}${inside}/${resource.plural}${one}${subresource === undefined ? "" : `/${subresource}`}`;
}

type Query = Record<string, string | number | boolean | undefined>;

function query(parameters: Query): string {
  const given = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) if (value !== undefined) given.append(name, String(value));
  const text = given.toString();
  return text === "" ? "" : `?${text}`;
}

function parseEvent<T>(what: string, line: string): WatchEvent<T> | { type: "ERROR"; object: unknown } {
  try {
    return JSON.parse(line);
  } catch (cause) {
    throw new HttpError("malformed", `${what}: a line of the stream is not JSON`, true, cause);
  }
}
