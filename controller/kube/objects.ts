/**
 * Kubernetes objects as the raw JSON they are on the wire: typed models of client libraries drop the fields they do not
 * know, in both directions. Times are strings.
 */

export interface OwnerReference {
  apiVersion: string;
  kind: string;
  name: string;
  uid: string;
  controller?: boolean;
  blockOwnerDeletion?: boolean;
}

export interface ObjectMeta {
  name: string;
  namespace?: string;
  uid?: string;
  resourceVersion?: string;
  generation?: number;
  creationTimestamp?: string;
  deletionTimestamp?: string;
  labels?: Record<string, string>;
  annotations?: Record<string, string>;
  finalizers?: string[];
  ownerReferences?: OwnerReference[];
}

export interface KubeObject {
  apiVersion?: string;
  kind?: string;
  metadata: ObjectMeta;
}

/** What this layer itself looks at: other parts bring their own types of what they read. */
export interface ObjectLike {
  apiVersion?: string;
  kind?: string;
  metadata: { name?: string; namespace?: string; uid?: string; resourceVersion?: string };
}

/** An object whose fields are looked at one by one. */
export type RawObject = KubeObject & Record<string, unknown>;

/** Where an object is; without namespace for what belongs to the cluster. */
export interface ObjectKey {
  namespace?: string;
  name: string;
}

/** `namespace/name`, or `name` for what belongs to the cluster. */
export function keyOf(object: ObjectLike): string {
  const { namespace, name = "" } = object.metadata;
  return namespace === undefined ? name : `${namespace}/${name}`;
}

export function parseKey(key: string): ObjectKey {
  const slash = key.indexOf("/");
  return slash < 0 ? { name: key } : { namespace: key.slice(0, slash), name: key.slice(slash + 1) };
}

/** Whether a server that says `version` counts below one that has said `known`: both decimal, as those of etcd are. */
export function countsBelow(version: string, known: string): boolean {
  if (!/^\d+$/.test(version) || !/^\d+$/.test(known)) return false;
  return BigInt(version) < BigInt(known);
}
