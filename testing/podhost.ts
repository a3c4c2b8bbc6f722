/**
 * Runs the pods of a namespace where no node is: each with the real sidecar, in this process, as its pod's own account, against a real
 * API server and a real PostgreSQL. Its application is the test, which writes through the sidecar's proxy.
 *
 * As a kubelet: what the API server does not know any more is ended, and what it says is running is started, also a second time.
 */
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import pg from "pg";
import { type KubeApi, RESOURCES } from "../controller/kube/api.ts";
import type { KubeObject, RawObject } from "../controller/kube/objects.ts";
import { type RawPod, SIDECAR_NAME } from "../controller/snapshot.ts";
import { withConnection } from "../fence/connection.ts";
import type { DatabaseAddress } from "../fence/database.ts";
import { systemClock } from "../platform/clock.ts";
import { silentLogger } from "../platform/log.ts";
import { systemRandom } from "../platform/random.ts";
import { readCredentials } from "../sidecar/credentials.ts";
import { startSidecarServer } from "../sidecar/http.ts";
import { openLeaseClient } from "../sidecar/leaseclient.ts";
import { Sidecar } from "../sidecar/sidecar.ts";
import { probeSession } from "../sidecar/wire/probe.ts";
import { startWire } from "../sidecar/wire/thread.ts";
import type { TestApiServer } from "./apiserver.ts";
import { givenConfig } from "./givenconfig.ts";
import { freePort } from "./postgres.ts";

export interface PodHostOptions {
  readonly server: TestApiServer;
  readonly api: KubeApi;
  readonly namespace: string;
  readonly address: DatabaseAddress;
}

interface Life {
  readonly name: string;
  readonly port: number;
  readonly ends: AbortController;
  readonly ended: Promise<void>;
  /** Monotonic: when the API server knew of its end. What it is then said to run is another life. */
  toldMs?: number;
}

const LOOK_MS = 200;

export class PodHost {
  readonly #options: PodHostOptions;
  readonly #dir = mkdtempSync(join(tmpdir(), "fencedjob-pods-"));
  readonly #lives = new Map<string, Life>();
  readonly #stop = new AbortController();
  readonly #looking: Promise<void>;

  constructor(options: PodHostOptions) {
    this.#options = options;
    this.#looking = this.#look();
  }

  /** Through the proxy of a pod, as its application. */
  async connect(uid: string): Promise<pg.Client> {
    const { user, database } = this.#options.address;
    const client = new pg.Client({ host: "127.0.0.1", port: this.#lives.get(uid)?.port ?? 0, user, database });
    client.on("error", () => {});
    await client.connect();
    return client;
  }

  /** The application ends, then its sidecar. */
  async end(uid: string, phase: "Succeeded" | "Failed"): Promise<void> {
    const life = this.#lives.get(uid);
    life?.ends.abort(new Error("SIGTERM"));
    await life?.ended;
    if (!life) return;
    await this.#say(life.name, phase, { terminated: { exitCode: 0 } });
    life.toldMs = systemClock.monoMs();
  }

  async stop(): Promise<void> {
    this.#stop.abort(new Error("stopped"));
    await this.#looking;
    for (const { ends } of this.#lives.values()) ends.abort(new Error("SIGTERM"));
    await Promise.all([...this.#lives.values()].map(({ ended }) => ended));
    rmSync(this.#dir, { recursive: true, force: true });
  }

  async #look(): Promise<void> {
    const { api, namespace } = this.#options;
    while (!this.#stop.signal.aborted) {
      const askedMs = systemClock.monoMs();
      // An API server that is away changes nothing on a node.
      const answer = await api.list<RawPod & KubeObject>(RESOURCES.pods, { namespace }).catch(() => null);
      if (answer) await this.#compare(answer.items, askedMs);
      await systemClock.sleep(LOOK_MS, this.#stop.signal).catch(() => {});
    }
  }

  async #compare(pods: readonly (RawPod & KubeObject)[], askedMs: number): Promise<void> {
    for (const [uid, { ends, ended }] of this.#lives) {
      if (pods.some(({ metadata }) => metadata.uid === uid)) continue;
      this.#lives.delete(uid);
      ends.abort(new Error("SIGTERM"));
      await ended;
    }
    for (const pod of pods) {
      const { phase } = pod.status ?? {};
      const uid = pod.metadata.uid ?? "";
      if (phase === "Succeeded" || phase === "Failed") continue;
      const life = this.#lives.get(uid);
      if (!life || (life.toldMs !== undefined && life.toldMs < askedMs)) await this.#start(pod, uid);
    }
  }

  async #start(pod: RawPod & KubeObject, uid: string): Promise<void> {
    const { server } = this.#options;
    const { name, namespace = "" } = pod.metadata;
    const given = givenConfig(pod);
    const dir = join(this.#dir, `${uid}-${this.#lives.size}`);
    mkdirSync(dir, { recursive: true });
    const bound = ["--bound-object-kind", "Pod", "--bound-object-name", name, "--bound-object-uid", uid];
    const account = String(pod.spec?.serviceAccountName);
    const token = await server.kubectl(["create", "token", "-n", namespace, account, ...bound]).catch(() => null);
    // Deleted meanwhile, or the API server went away: it is looked at again.
    if (token === null) return;
    writeFileSync(join(dir, "token"), token);
    writeFileSync(join(dir, "ca.crt"), server.caPem);
    const port = await freePort();
    const databases = given.databases.map((database) => ({ ...database, port, dir: this.#secret(dir, database.name) }));
    const where = { namespace, name: given.job, baseUrl: server.url, clock: systemClock };
    const lease = openLeaseClient({ ...where, tokenPath: join(dir, "token"), caPath: join(dir, "ca.crt") });
    const sidecar = new Sidecar({
      config: { ...given, databases, tokenDir: dir, httpPort: await freePort() },
      pod: { name, uid },
      api: lease,
      clock: systemClock,
      random: systemRandom,
      log: silentLogger,
      databases: { credentials: readCredentials, connect: withConnection, probe: probeSession },
      startWire,
      startServer: startSidecarServer,
      leaveLastWords: () => {},
    });
    const ends = new AbortController();
    const closes = given.purpose === "close";
    const ended = sidecar.run(ends.signal).then(async () => {
      lease.close();
      // Nobody has asked it to.
      if (closes && !ends.signal.aborted) {
        await this.#say(name, sidecar.closed ? "Succeeded" : "Failed", {
          terminated: { exitCode: sidecar.closed ? 0 : 1 },
        });
      }
    });
    this.#lives.set(uid, { name, port, ends, ended });
    await this.#say(name, "Running", { running: {} });
  }

  #secret(dir: string, database: string): string {
    const { host, port, database: dbname, user, sslmode } = this.#options.address;
    const secret = join(dir, database);
    mkdirSync(secret);
    const values = { host, port: String(port), dbname, user, sslmode };
    for (const [key, value] of Object.entries(values)) writeFileSync(join(secret, key), value);
    return secret;
  }

  async #say(name: string, phase: string, state: object): Promise<void> {
    const { api, namespace } = this.#options;
    const containers = [{ name: SIDECAR_NAME, image: "x", imageID: "x", ready: true, restartCount: 0, state }];
    const status = { phase, initContainerStatuses: containers };
    await api
      .patch<RawObject>(RESOURCES.pods, { namespace, name }, { status }, { subresource: "status" })
      .catch(() => {});
  }
}
