/** Where a protected database is and how to reach it: one shape for the fence's client and for the wire's upstream. */

export type SslMode = "disable" | "allow" | "prefer" | "require" | "verify-ca" | "verify-full";

export interface DatabaseAddress {
  readonly host: string;
  readonly port: number;
  readonly database: string;
  readonly user: string;
  readonly password?: string;
  readonly sslmode: SslMode;
  /** PEM of the certificate authorities to trust, for verify-ca and verify-full. */
  readonly ca?: string;
}

/** The job whose fence is meant, and who speaks for it. */
export interface FenceIdentity {
  /** `spec.fenceName`, default `namespace/name`. */
  readonly fenceName: string;
  /** Issued once by the controller, 1 … 2^53−1. */
  readonly generation: number;
  /** The pod UID (or a random identity for `fencedjob proxy`). */
  readonly holder: string;
  /** The pod's name, for people only. */
  readonly holderName: string;
}
