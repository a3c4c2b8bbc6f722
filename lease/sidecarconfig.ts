/** What the controller tells a sidecar through its environment: the only contract between the two processes beside the Lease. */
import type { LeaseTiming } from "./timing.ts";

/**
 * How long the kubelet waits for one answer of the startup probe. The sidecar answers the moment the application may start,
 * and so late only while it may not: else each start would wait for the next probe.
 */
export const STARTUP_PROBE_SECONDS = 10;

export interface SidecarDatabase {
  readonly name: string;
  /** Port on 127.0.0.1 where the application finds it. */
  readonly port: number;
  /** Directory of the Unix socket where the application finds it as well; absent: TCP only. */
  readonly socketDir?: string;
  /** Name of the Secret, for messages. */
  readonly secretName: string;
  /** Where the Secret is mounted. */
  readonly dir: string;
}

export interface SidecarConfig {
  /** close: raise, close at once, release, end; for where nobody is left who could close. Absent: own the job. */
  readonly purpose?: "close";
  readonly namespace: string;
  /** Name of the FencedJob and of its Lease. */
  readonly job: string;
  readonly fenceName: string;
  /** Identity of the cluster that issues generations. */
  readonly issuer: string;
  /** Another issuer's fence that is taken over (spec.takeOver), up to that generation. */
  readonly takeOver?: { readonly issuer: string; readonly generation: number };
  /** Started: the application runs while this is a candidate, and its connections are held until the raise. */
  readonly application: "NotStarted" | "Started";
  readonly timing: LeaseTiming;
  readonly drainMs: number;
  readonly databases: readonly SidecarDatabase[];
  /** That have left the spec with an open fence: raised and closed beside the work, which does not wait for them. */
  readonly closes?: readonly SidecarDatabase[];
  /** Directory with `token` and `ca.crt`. */
  readonly tokenDir: string;
  readonly httpPort: number;
  /** Where the kubelet reads a container's termination message. */
  readonly lastWordsPath: string;
}
