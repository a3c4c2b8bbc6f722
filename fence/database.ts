/** Where a protected database is and how to reach it: one shape for the fence's client and for the wire's upstream. */

export type SslMode = "disable" | "allow" | "prefer" | "require" | "verify-ca" | "verify-full";

/** One server: a host name or address, or the directory of a Unix socket (it begins with "/"). */
export interface Endpoint {
  readonly host: string;
  readonly port: number;
}

/** Of the authorities that the machine trusts, as `ca`. */
export const SYSTEM_AUTHORITIES = "system";

/** What is left out has libpq's default, except where it says otherwise. */
export interface DatabaseAddress extends Endpoint {
  /** Further servers of the same database, tried in this order behind the first. */
  readonly furtherHosts?: readonly Endpoint[];
  readonly database: string;
  readonly user: string;
  readonly password?: string;
  readonly sslmode: SslMode;
  /** PEM of the certificate authorities to trust, or SYSTEM_AUTHORITIES. */
  readonly ca?: string;
  readonly clientCertificate?: ClientCertificate;
  /** Whether the server is told the name that is asked for (SNI). */
  readonly sslSni?: boolean;
  /** direct: TLS begins without a request for it (PostgreSQL 17 and newer). */
  readonly sslNegotiation?: "postgres" | "direct";
  /** Whether the login must be tied to this TLS connection (SCRAM-SHA-256-PLUS). */
  readonly channelBinding?: "disable" | "prefer" | "require";
  /** Default read-write, unlike libpq's: the fence needs a primary, so a standby is passed over. */
  readonly targetSession?: "read-write" | "primary" | "any";
  /** Bound of one attempt, to one address of one host. Absent: what is left of the whole bound, shared by the hosts. */
  readonly connectTimeoutMs?: number;
  /** Silence after which the network is asked whether the server is still there; 0: never. Default 30 s. */
  readonly keepAliveIdleMs?: number;
}

/** PEM texts. */
export interface ClientCertificate {
  readonly certificate: string;
  readonly key: string;
  /** Of an encrypted key. */
  readonly passphrase?: string;
}

export const isUnixSocket = ({ host }: Endpoint): boolean => host.startsWith("/");

/** Where the socket of a server lies, as libpq looks for it. */
export const socketPath = ({ host, port }: Endpoint): string => `${host}/.s.PGSQL.${port}`;

export const endpointsOf = (address: DatabaseAddress): readonly Endpoint[] => [
  { host: address.host, port: address.port },
  ...(address.furtherHosts ?? []),
];

/** For people: `db-1:5432, db-2:5432`. */
export const whereIs = (address: DatabaseAddress): string => endpointsOf(address).map(sayEndpoint).join(", ");

/** The same database on the same servers, whoever logs in there and how. */
export const isSamePlace = (a: DatabaseAddress, b: DatabaseAddress): boolean =>
  a.database === b.database && whereIs(a) === whereIs(b);

export function sayEndpoint(endpoint: Endpoint): string {
  if (isUnixSocket(endpoint)) return socketPath(endpoint);
  return endpoint.host.includes(":") ? `[${endpoint.host}]:${endpoint.port}` : `${endpoint.host}:${endpoint.port}`;
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

/** Another control plane's fence that may be raised over, up to the generation that a person has seen there. */
export interface TakeOver {
  readonly issuer: string;
  readonly generation: number;
}
