/**
 * The pod of an attempt: the user's template as raw JSON, with the sidecar as its first init container. Pure.
 *
 * Invariants: the application's containers see no credentials and no token of the sidecar (decision 3); the
 * application starts only when the sidecar's startup probe passes: after the raise, or, if the spec wants it started
 * early, when its connections are held until then (INV-4).
 */

import { createHash } from "node:crypto";
import { type SidecarConfig, type SidecarDatabase, STARTUP_PROBE_SECONDS } from "../lease/sidecarconfig.ts";
import { API_VERSION, type FencedJobSpec, type JobMeta, KIND, SIDECAR_HTTP_PORT, timingOf } from "./api/spec.ts";
import type { OpenFence } from "./draft.ts";
import type { OwnerReference } from "./kube/objects.ts";
import {
  APPLICATION_ANNOTATION,
  ATTEMPT_LABEL,
  JOB_LABEL,
  type RawPod,
  SIDECAR_ENV,
  SIDECAR_NAME,
  SPEC_ANNOTATION,
} from "./snapshot.ts";

export type Json = { [key: string]: unknown };

/** What the controller adds to each pod; from its own configuration. */
export interface SidecarImage {
  readonly image: string;
  readonly imagePullPolicy: string;
  readonly resources: Json;
}

const DIGEST_CHARACTERS = 16;
const TOKEN_VOLUME = "fencedjob-token";
const DATABASE_VOLUME_PREFIX = "fencedjob-database-";
const DATABASES_DIR = "/etc/fencedjob/databases";
const TOKEN_DIR = "/var/run/fencedjob";
const SOCKET_VOLUME = "fencedjob-sockets";
/** One for all databases: a socket's name ends with its port. */
const SOCKET_DIR = "/var/run/fencedjob-sockets";
const LAST_WORDS_PATH = "/dev/termination-log";
/** What is only closed is listened to nowhere. */
const UNUSED_PORT = 5432;
/** The token is renewed by the kubelet at 80 % of its life. */
const TOKEN_SECONDS = 3600;
/** The probe waits as long as ownership takes; it never fails the container (C04). */
const STARTUP_PROBE_FAILURES_MAX = 2 ** 31 - 1;

export interface PodParts {
  readonly meta: JobMeta;
  readonly spec: FencedJobSpec;
  readonly sidecar: SidecarImage;
  /** Identity of the cluster that issues generations: the row's issuer in the fence. */
  readonly issuer: string;
  /** Fences that the pod is to close. */
  readonly closes?: readonly OpenFence[];
}

export function podName(job: string, attempt: number): string {
  return `${job}-${attempt}`;
}

/** Digest of what its pods are made from: more standbys, another limit or deadline is no reason to make one anew. */
export function madeFrom(spec: FencedJobSpec): string {
  const {
    suspend: _,
    backoffLimit: __,
    activeDeadlineSeconds: ___,
    ttlSecondsAfterFinished: ____,
    standbys,
    ...rest
  } = spec;
  const text = JSON.stringify({ ...rest, application: standbys.application });
  return createHash("sha256").update(text).digest("hex").slice(0, DIGEST_CHARACTERS);
}

/** The account of the job's pods: the template's own, or one made for the job, which may touch its Lease only (D12). */
export function serviceAccountOf(meta: JobMeta, spec: FencedJobSpec): { name: string; ours: boolean } {
  // The API server takes the older name, too, where the newer is not set.
  const own = spec.template.spec.serviceAccountName || spec.template.spec.serviceAccount;
  if (typeof own === "string" && own) return { name: own, ours: false };
  return { name: ownAccountOf(meta), ours: true };
}

/** Of the account that is made for a job, of its role and its binding. */
export function ownAccountOf({ name }: JobMeta): string {
  return `${name}-fencedjob`;
}

export function buildPod(parts: PodParts, attempt: number): Json {
  const { spec } = parts;
  const pod = structuredClone(spec.template.spec) as Json;
  return {
    ...identityOf(parts, attempt, spec.standbys.application),
    spec: {
      ...pod,
      affinity: apart(pod.affinity as Json | undefined, parts.meta),
      ...accountOf(parts),
      containers: list(pod.containers).map((container) => withDatabases(container, spec)),
      initContainers: [
        { ...sidecarContainer(parts), ...NATIVE_SIDECAR },
        ...list(pod.initContainers).map((container) => withDatabases(container, spec)),
      ],
      volumes: [...list(pod.volumes), ...sidecarVolumes(parts)],
    },
  };
}

const WEIGHT_MAX = 100;
export const PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution";
export const antiAffinityOf = ({ affinity }: Json): Json | undefined =>
  (affinity as Json | undefined)?.podAntiAffinity as Json;

/**
 * On another node than the job's other pods, where there is one with room. The scheduler does not know for most of a minute
 * that a node was lost: the successor of a lost owner would wait on the same node.
 */
function apart(affinity: Json | undefined, { name }: JobMeta): Json {
  const anti = antiAffinityOf({ affinity });
  const podAffinityTerm = {
    topologyKey: "kubernetes.io/hostname",
    labelSelector: { matchLabels: { [JOB_LABEL]: name } },
  };
  const terms = [...list(anti?.[PREFERRED]), { weight: WEIGHT_MAX, podAffinityTerm }];
  return { ...affinity, podAntiAffinity: { ...anti, [PREFERRED]: terms } };
}

/** A pod that has only the sidecar, as its one container: it raises the fences of `closes`, closes them, and ends. */
export function buildCloser(parts: PodParts, attempt: number): Json {
  const closing = { ...parts, spec: { ...parts.spec, databases: databasesOf(parts.closes) }, closes: [] };
  // Where it may run, and as whom, is the template's; what only an application needs is not.
  const { initContainers: _, containers: __, volumes: ___, ...pod } = parts.spec.template.spec as Json;
  return {
    ...identityOf(parts, attempt, "NotStarted"),
    spec: {
      ...pod,
      affinity: apart(pod.affinity as Json | undefined, parts.meta),
      ...accountOf(parts),
      restartPolicy: "Never",
      containers: [sidecarContainer(closing, "close")],
      volumes: sidecarVolumes(closing),
    },
  };
}

function databasesOf(fences: readonly OpenFence[] = []): FencedJobSpec["databases"] {
  return fences.map(({ database, secretName }) => ({ name: database, secretName, port: UNUSED_PORT, socket: false }));
}

function identityOf({ meta, spec }: PodParts, attempt: number, application: SidecarConfig["application"]): Json {
  const { metadata } = spec.template as { metadata?: Json };
  return {
    apiVersion: "v1",
    kind: "Pod",
    metadata: {
      labels: { ...(metadata?.labels as Json), [JOB_LABEL]: meta.name, [ATTEMPT_LABEL]: String(attempt) },
      annotations: {
        ...(metadata?.annotations as Json),
        [SPEC_ANNOTATION]: madeFrom(spec),
        [APPLICATION_ANNOTATION]: application,
      },
      name: podName(meta.name, attempt),
      namespace: meta.namespace,
      ownerReferences: [controllerReference(meta)],
    },
  };
}

/** An account that we made is for the sidecar; the application gets no token of it. */
function accountOf({ meta, spec }: PodParts): Json {
  const account = serviceAccountOf(meta, spec);
  const unasked = account.ours && spec.template.spec.automountServiceAccountToken === undefined;
  return { serviceAccountName: account.name, ...(unasked && { automountServiceAccountToken: false }) };
}

/** What is made while the FencedJob is being deleted, to close its fences, is not deleted in front of it. */
export function controllerReference(meta: JobMeta): OwnerReference {
  return {
    apiVersion: API_VERSION,
    kind: KIND,
    name: meta.name,
    uid: meta.uid,
    controller: true,
    blockOwnerDeletion: meta.deletionTimestamp === undefined,
  };
}

/** Controlled by the FencedJob of this UID: one that was made anew under its name is another one. */
export function isOwnedBy(pod: RawPod, jobUid: string): boolean {
  return pod.metadata.ownerReferences?.some(({ uid, controller }) => controller && uid === jobUid) ?? false;
}

/** AlreadyExists is success only for the very pod that this attempt would have made (A04), and that the watch will show. */
export function isAttemptOf(pod: RawPod, meta: JobMeta, attempt: number): boolean {
  return (
    isOwnedBy(pod, meta.uid) &&
    pod.metadata.labels?.[JOB_LABEL] !== undefined &&
    pod.metadata.labels[ATTEMPT_LABEL] === String(attempt) &&
    pod.metadata.deletionTimestamp === undefined
  );
}

function withDatabases(container: Json, spec: FencedJobSpec): Json {
  return withSockets(withDatabaseEnvironment(container, spec), spec);
}

/**
 * Where the application finds its database, for the variables that libpq and most drivers read. The template's own
 * values win (E03). More than one database: the application names the ports itself.
 */
function withDatabaseEnvironment(container: Json, spec: FencedJobSpec): Json {
  const [database] = spec.databases;
  if (spec.databases.length !== 1 || !database) return container;
  const env = list(container.env);
  const has = (name: string): boolean => env.some((entry) => entry.name === name);
  if (has("PGHOST") || has("PGPORT") || has("PGSERVICE")) return container;
  const added = [
    { name: "PGHOST", value: database.socket ? SOCKET_DIR : "127.0.0.1" },
    { name: "PGPORT", value: String(database.port) },
  ];
  return { ...container, env: [...added, ...env] };
}

const hasSockets = (spec: FencedJobSpec): boolean => spec.databases.some(({ socket }) => socket);

/** Not read-only: one cannot connect to a socket whose file one may not write. */
function withSockets(container: Json, spec: FencedJobSpec): Json {
  if (!hasSockets(spec)) return container;
  return { ...container, volumeMounts: [...list(container.volumeMounts), SOCKET_MOUNT] };
}

const SOCKET_MOUNT: Json = { name: SOCKET_VOLUME, mountPath: SOCKET_DIR };

/** It runs before and beside the application's containers, which start when its fences are raised (INV-4). */
const NATIVE_SIDECAR: Json = {
  restartPolicy: "Always",
  startupProbe: {
    httpGet: { path: "/started", port: SIDECAR_HTTP_PORT },
    periodSeconds: 1,
    timeoutSeconds: STARTUP_PROBE_SECONDS,
    failureThreshold: STARTUP_PROBE_FAILURES_MAX,
  },
};

function sidecarContainer({ meta, spec, sidecar, issuer, closes }: PodParts, purpose?: "close"): Json {
  const removed = databasesOf(closes);
  const config: SidecarConfig = {
    namespace: meta.namespace,
    job: meta.name,
    fenceName: spec.fenceName ?? `${meta.namespace}/${meta.name}`,
    issuer,
    ...(spec.takeOver && { takeOver: spec.takeOver }),
    application: spec.standbys.application,
    timing: timingOf(spec),
    drainMs: spec.drainSeconds * 1000,
    databases: spec.databases.map(asMounted),
    ...(removed.length && { closes: removed.map(asMounted) }),
    tokenDir: TOKEN_DIR,
    httpPort: SIDECAR_HTTP_PORT,
    ...(purpose && { purpose }),
    lastWordsPath: LAST_WORDS_PATH,
  };
  const field = (name: string, fieldPath: string): Json => ({ name, valueFrom: { fieldRef: { fieldPath } } });
  return {
    name: SIDECAR_NAME,
    image: sidecar.image,
    imagePullPolicy: sidecar.imagePullPolicy,
    args: ["sidecar"],
    env: [
      // The kubelet expands $(…) and $$ in a variable: a fence's name would be another one.
      { name: SIDECAR_ENV, value: JSON.stringify(config).replaceAll("$", "\\u0024") },
      field("POD_NAME", "metadata.name"),
      field("POD_UID", "metadata.uid"),
    ],
    terminationMessagePath: LAST_WORDS_PATH,
    resources: sidecar.resources,
    securityContext: {
      runAsNonRoot: true,
      runAsUser: 65532,
      runAsGroup: 65532,
      readOnlyRootFilesystem: true,
      allowPrivilegeEscalation: false,
      capabilities: { drop: ["ALL"] },
      seccompProfile: { type: "RuntimeDefault" },
    },
    volumeMounts: [
      { name: TOKEN_VOLUME, mountPath: TOKEN_DIR, readOnly: true },
      ...[...spec.databases, ...removed].map(({ name }) => ({
        name: DATABASE_VOLUME_PREFIX + name,
        mountPath: `${DATABASES_DIR}/${name}`,
        readOnly: true,
      })),
      ...(hasSockets(spec) ? [SOCKET_MOUNT] : []),
    ],
  };
}

function asMounted({ name, port, secretName, socket }: FencedJobSpec["databases"][number]): SidecarDatabase {
  return { name, port, ...(socket && { socketDir: SOCKET_DIR }), secretName, dir: `${DATABASES_DIR}/${name}` };
}

function sidecarVolumes({ spec, closes }: PodParts): Json[] {
  const token = {
    name: TOKEN_VOLUME,
    projected: {
      defaultMode: 0o444,
      sources: [
        { serviceAccountToken: { path: "token", expirationSeconds: TOKEN_SECONDS } },
        { configMap: { name: "kube-root-ca.crt", items: [{ key: "ca.crt", path: "ca.crt" }] } },
      ],
    },
  };
  // Optional, so that the sidecar starts without it and can say what is missing; the controller reads no Secret.
  const secrets = [...spec.databases, ...databasesOf(closes)].map(({ name, secretName }) => ({
    name: DATABASE_VOLUME_PREFIX + name,
    secret: { secretName, optional: true, defaultMode: 0o444 },
  }));
  return [token, ...secrets, ...(hasSockets(spec) ? [{ name: SOCKET_VOLUME, emptyDir: {} }] : [])];
}

export function list(value: unknown): Json[] {
  return Array.isArray(value) ? (value as Json[]) : [];
}
