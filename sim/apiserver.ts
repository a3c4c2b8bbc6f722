/**
 * A modelled API server: objects with resource versions, writes conditional on them, watches that resume, bookmarks, and
 * an etcd that can be restored from an older snapshot. Answers as `HttpClient`, so that everything above HTTP is real.
 *
 * Does NOT validate objects and knows no rights: controller/controller.api.test.ts has a real one.
 */
import type { DeleteOptions } from "../controller/kube/api.ts";
import type { HttpResponse } from "../platform/http.ts";
import { WALL_MS_AT_START } from "./process.ts";
import type { Scheduler } from "./scheduler.ts";

// biome-ignore lint/suspicious/noExplicitAny: objects of several kinds, as raw as they are in the API server.
export type Stored = { metadata: Record<string, any> } & Record<string, any>;

/** Of an object that is there, is made, or goes away. */
export interface Write {
  readonly plural: string;
  readonly before: Stored | undefined;
  readonly after: Stored | undefined;
  readonly author: string;
}

/** Who writes what no process of the world writes: people, kubelets, collectors. */
export const KUBERNETES = "kubernetes";

interface Change {
  readonly version: number;
  readonly plural: string;
  readonly object: Stored;
  /** As it was: whoever watches by a label hears when it is taken off. */
  readonly before: Stored | undefined;
  /** As a watch tells it. */
  readonly line: string;
}

interface Watcher {
  readonly plural: string;
  readonly labelSelector: string | undefined;
  readonly name: string | undefined;
  readonly deliver: (line: string | null) => void;
}

export interface Snapshot {
  readonly objects: ReadonlyMap<string, Stored>;
  readonly version: number;
}

/** Changes that a watch can still resume from. */
const HISTORY_MAX = 200;
/** What `etcdutl snapshot restore --bump-revision` is given. */
const BUMP = 1_000_000;
const BOOKMARK_MS = 60_000;
/** What is asked for and always the same. */
export const CLUSTER_UID = "cluster-1";

export class ApiServer {
  /** Called in front of each change that is stored; throws when it breaks an invariant. */
  onWrite: (write: Write) => void = () => {};
  readonly #scheduler: Scheduler;
  #objects = new Map<string, Stored>();
  #version = 1;
  #uids = 0;
  #history: Change[] = [];
  readonly #watchers = new Set<Watcher>();

  constructor(scheduler: Scheduler) {
    this.#scheduler = scheduler;
    const bookmarks = (): void => {
      for (const watcher of this.#watchers) watcher.deliver(this.#bookmark());
      scheduler.at(scheduler.nowMs + BOOKMARK_MS, bookmarks);
    };
    scheduler.at(BOOKMARK_MS, bookmarks);
  }

  // ---- for the world: people, kubelets, collectors ----

  get(plural: string, name: string): Stored | undefined {
    return this.#objects.get(`${plural}/${name}`);
  }

  list(plural: string): Stored[] {
    return [...this.#objects].flatMap(([key, object]) => (key.startsWith(`${plural}/`) ? [object] : []));
  }

  put(plural: string, object: Stored, author = KUBERNETES): Stored {
    const key = `${plural}/${object.metadata.name}`;
    const before = this.#objects.get(key);
    const version = ++this.#version;
    const uid = before?.metadata.uid ?? `${plural}-${object.metadata.name}-${++this.#uids}`;
    const after: Stored = {
      ...object,
      metadata: { ...object.metadata, namespace: "n", uid, resourceVersion: String(version) },
    };
    this.onWrite({ plural, before, after, author });
    this.#objects.set(key, after);
    this.#tell({ version, plural, object: after, before, line: lineOf(before ? "MODIFIED" : "ADDED", after) });
    return after;
  }

  remove(plural: string, name: string): void {
    const key = `${plural}/${name}`;
    const before = this.#objects.get(key);
    if (!before) return;
    const version = ++this.#version;
    this.onWrite({ plural, before, after: undefined, author: KUBERNETES });
    this.#objects.delete(key);
    const object = { ...before, metadata: { ...before.metadata, resourceVersion: String(version) } };
    this.#tell({ version, plural, object, before, line: lineOf("DELETED", object) });
  }

  /** At once, or when its kubelet has taken it away, or whose finalizer it is. */
  askToEnd(plural: string, name: string, author = KUBERNETES): void {
    const present = this.get(plural, name);
    if (!present || present.metadata.deletionTimestamp) return;
    if (plural !== "pods" && !present.metadata.finalizers?.length) return this.remove(plural, name);
    const metadata = { ...present.metadata, deletionTimestamp: "2026-11-29T12:00:00Z" };
    this.put(plural, { ...present, metadata }, author);
  }

  snapshot(): Snapshot {
    return { objects: new Map(this.#objects), version: this.#version };
  }

  /** etcd comes back as it was; its versions count on from then, or, `bumped`, from far above all that were given out. */
  restore({ objects, version }: Snapshot, bumped: boolean): void {
    this.#objects = new Map(objects);
    this.#version = bumped ? this.#version + BUMP : version;
    this.#history = [];
    for (const watcher of [...this.#watchers]) watcher.deliver(null);
  }

  /** Watches begin anew with a list. */
  compact(): void {
    this.#history = [];
  }

  // ---- HTTP ----

  /** `author`: the name of the process that asks. The body is the server's own. */
  handle(method: string, path: string, body: unknown, author: string): HttpResponse {
    const date = new Date(WALL_MS_AT_START + this.#scheduler.nowMs).toUTCString();
    return { ...this.#answer(method, path, body, author), headers: { date } };
  }

  #answer(method: string, path: string, body: unknown, author: string): HttpResponse {
    const url = parse(path);
    if (url.plural === "namespaces") return ok({ metadata: { name: url.name, uid: CLUSTER_UID } });
    switch (method) {
      case "GET":
        return url.name === undefined ? this.#list(url) : this.#get(url);
      case "POST":
        return this.#create(url, body as Stored, author);
      case "PUT":
        return this.#update(url, body as Stored, author);
      case "DELETE":
        return this.#delete(url, body as DeleteOptions, author);
      default:
        // Accounts, roles and events: nobody looks at them here.
        return ok(body);
    }
  }

  /** `deliver` gets lines, and null when the server ends the watch. Returns how to leave. */
  watch(path: string, deliver: (line: string | null) => void): HttpResponse | (() => void) {
    const { plural, query } = parse(path);
    const name = /^metadata\.name=(.+)$/.exec(query.get("fieldSelector") ?? "")?.[1];
    const watcher: Watcher = { plural, name, labelSelector: query.get("labelSelector") ?? undefined, deliver };
    const refused = this.#resume(watcher, query.get("resourceVersion") ?? "");
    if (refused) return refused;
    this.#watchers.add(watcher);
    const seconds = Number(query.get("timeoutSeconds") ?? 300);
    const cancel = this.#scheduler.at(this.#scheduler.nowMs + seconds * 1000, () => {
      this.#watchers.delete(watcher);
      deliver(null);
    });
    return () => {
      this.#watchers.delete(watcher);
      cancel();
    };
  }

  /** What the watcher has missed; from nowhere, the present state. */
  #resume(watcher: Watcher, from: string): HttpResponse | undefined {
    if (from === "") {
      for (const object of this.list(watcher.plural)) {
        if (concerns(watcher, object)) watcher.deliver(lineOf("ADDED", object));
      }
      return undefined;
    }
    const version = Number(from);
    // Beyond the present version: etcd was restored.
    if (version > this.#version) return status(504, "Timeout", "Too large resource version");
    const oldest = this.#history[0]?.version ?? this.#version + 1;
    if (version < oldest - 1) return status(410, "Expired", "too old resource version");
    for (const change of this.#history) {
      if (change.version > version) tell(watcher, change);
    }
    return undefined;
  }

  #tell(change: Change): void {
    this.#history.push(change);
    if (this.#history.length > HISTORY_MAX) this.#history.splice(0, HISTORY_MAX / 2);
    for (const watcher of this.#watchers) tell(watcher, change);
  }

  #bookmark(): string {
    return JSON.stringify({ type: "BOOKMARK", object: { metadata: { resourceVersion: String(this.#version) } } });
  }

  #get({ plural, name = "" }: Target): HttpResponse {
    const object = this.get(plural, name);
    return object ? ok(copy(object)) : notFound();
  }

  #list({ plural, query }: Target): HttpResponse {
    const selector = query.get("labelSelector") ?? undefined;
    const items = this.list(plural).filter((object) => hasLabel(object, selector));
    return ok({ items: copy(items), metadata: { resourceVersion: String(this.#version) } });
  }

  #create({ plural, query }: Target, object: Stored, author: string): HttpResponse {
    if (query.get("dryRun") || !STORED.has(plural)) return ok(object);
    if (this.get(plural, object.metadata.name)) return status(409, "AlreadyExists", "already exists");
    if (plural === "pods") object.status = { phase: "Pending" };
    return ok(copy(this.put(plural, object, author)));
  }

  #update({ plural, name = "", subresource }: Target, object: Stored, author: string): HttpResponse {
    const present = this.get(plural, name);
    if (!present) return notFound();
    const { uid, resourceVersion } = object.metadata;
    if (uid && uid !== present.metadata.uid) return status(409, "Conflict", "another object");
    if (resourceVersion !== present.metadata.resourceVersion) return status(409, "Conflict", "the object was modified");
    const next = subresource === "status" ? { ...present, status: object.status } : object;
    const written = this.put(plural, next, author);
    const { deletionTimestamp, finalizers = [] } = written.metadata;
    if (plural === "fencedjobs" && deletionTimestamp && !finalizers.length) this.remove(plural, name);
    return ok(copy(written));
  }

  #delete({ plural, name = "" }: Target, options: DeleteOptions, author: string): HttpResponse {
    const present = this.get(plural, name);
    if (!present) return notFound();
    const { uid, resourceVersion } = options?.preconditions ?? {};
    if (uid && uid !== present.metadata.uid) return status(409, "Conflict", "another object");
    if (resourceVersion && resourceVersion !== present.metadata.resourceVersion)
      return status(409, "Conflict", "another version");
    this.askToEnd(plural, name, author);
    return ok({});
  }
}

/** What is not here is taken and forgotten. */
const STORED = new Set(["fencedjobs", "pods", "leases"]);

interface Target {
  readonly plural: string;
  readonly name: string | undefined;
  readonly subresource: string | undefined;
  readonly query: URLSearchParams;
}

function parse(path: string): Target {
  const [route = "", query = ""] = path.split("?");
  const parts = route.split("/").slice(route.startsWith("/api/") ? 3 : 4);
  const [plural = "", name, subresource] = parts[0] === "namespaces" && parts.length > 2 ? parts.slice(2) : parts;
  return { plural, name, subresource, query: new URLSearchParams(query) };
}

export const pluralOf = (path: string): string => parse(path).plural;

const ok = (body: unknown): HttpResponse => ({ status: 200, headers: {}, body });
const status = (code: number, reason: string, message: string): HttpResponse => ({
  status: code,
  headers: {},
  body: { kind: "Status", code, reason, message },
});
const notFound = (): HttpResponse => status(404, "NotFound", "not found");

const hasLabel = (object: Stored, selector: string | undefined): boolean =>
  selector === undefined || object.metadata.labels?.[selector] !== undefined;
const concerns = ({ name, labelSelector }: Watcher, object: Stored): boolean =>
  (name === undefined || object.metadata.name === name) && hasLabel(object, labelSelector);
function tell(watcher: Watcher, { plural, object, before, line }: Change): void {
  if (watcher.plural !== plural) return;
  if (concerns(watcher, object)) watcher.deliver(line);
  else if (before && concerns(watcher, before)) watcher.deliver(lineOf("DELETED", object));
}
const lineOf = (type: string, object: Stored): string => JSON.stringify({ type, object });

/** Of plain JSON; many times faster than structuredClone. */
function copy<T>(value: T): T {
  if (typeof value !== "object" || value === null) return value;
  if (Array.isArray(value)) return value.map(copy) as T;
  const copied: Record<string, unknown> = {};
  for (const key of Object.keys(value)) copied[key] = copy((value as Record<string, unknown>)[key]);
  return copied as T;
}
