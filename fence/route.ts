/**
 * Which server is tried, how, and in which order: hosts in turn, each of their addresses, with and without TLS as
 * sslmode allows. As libpq does it, but for two things: standbys are passed over unless the address says any, and hosts
 * share the time that is left, so that one that does not answer cannot use it up.
 */
import { lookup } from "node:dns/promises";
import { isIP } from "node:net";
import { type Bounds, within } from "../platform/within.ts";
import { type DatabaseAddress, type Endpoint, endpointsOf, isUnixSocket, sayEndpoint } from "./database.ts";
import { LoginError, NoServer, sqlStateOf } from "./errors.ts";
import { type Route, TlsFailure } from "./socket.ts";

/** One try, up to a session that can be used; it fails soon after its signal aborts. */
export type Attempt<T> = (route: Route, signal: AbortSignal) => Promise<T>;

/**
 * The result of the first attempt that succeeds. The bound is that of all together, name resolution included. Throws the
 * only attempt's error, NoServer when there were several, or the signal's reason.
 */
export async function inTurn<T>(address: DatabaseAddress, bounds: Bounds, attempt: Attempt<T>): Promise<T> {
  const { clock, signal } = bounds;
  const deadlineMs = clock.monoMs() + bounds.timeoutMs;
  const endpoints = endpointsOf(address);
  const failures: { where: string; error: unknown }[] = [];
  /** An even share of what is left for each of `count` that are left. */
  const share = (count: number): Bounds => {
    const leftMs = Math.max(1, (deadlineMs - clock.monoMs()) / count);
    return { clock, signal, timeoutMs: Math.min(leftMs, address.connectTimeoutMs ?? leftMs) };
  };
  for (const [i, endpoint] of endpoints.entries()) {
    const endpointsLeft = endpoints.length - i;
    let ips: string[] = [];
    try {
      ips = await within(share(endpointsLeft), (bound) => resolve(endpoint, bound));
    } catch (error) {
      signal?.throwIfAborted();
      failures.push({ where: sayEndpoint(endpoint), error });
    }
    for (const [k, ip] of ips.entries()) {
      const left = share(endpointsLeft + ips.length - k - 1);
      const outcome = await within(left, (bound) => tryTls(address, { endpoint, ip }, bound, attempt));
      if ("result" in outcome) return outcome.result;
      signal?.throwIfAborted();
      failures.push({ where: sayEndpoint({ host: ip || endpoint.host, port: endpoint.port }), error: outcome.error });
      if (!outcome.otherHost) throw outcome.error;
    }
  }
  const [only, ...others] = failures;
  throw others.length === 0 ? only?.error : new NoServer(failures);
}

type Outcome<T> = { readonly result: T } | { readonly error: unknown; readonly otherHost: boolean };

async function tryTls<T>(
  address: DatabaseAddress,
  where: Omit<Route, "tls">,
  signal: AbortSignal,
  attempt: Attempt<T>,
): Promise<Outcome<T>> {
  const [first, second] = tlsInTurn(address, where.endpoint);
  try {
    return { result: await attempt({ ...where, tls: first }, signal) };
  } catch (error) {
    if (second === undefined || nextAfter(error, address) !== "otherTls") return failed(error, address, signal);
  }
  try {
    return { result: await attempt({ ...where, tls: second }, signal) };
  } catch (error) {
    return failed(error, address, signal);
  }
}

function failed(error: unknown, address: DatabaseAddress, signal: AbortSignal): Outcome<never> {
  if (signal.aborted) return { error: signal.reason, otherHost: true };
  const next = nextAfter(error, address);
  return { error, otherHost: next === "otherHost" || error instanceof TlsFailure };
}

/** `allow` begins without TLS, `prefer` with it, and each tries the other when the server refuses. */
function tlsInTurn(address: DatabaseAddress, endpoint: Endpoint): [boolean, boolean?] {
  if (isUnixSocket(endpoint) || address.sslmode === "disable") return [false];
  if (address.channelBinding === "require") return [true];
  if (address.sslmode === "allow") return [false, true];
  if (address.sslmode === "prefer") return [true, false];
  return [true];
}

/** What a failed attempt says about the others. A server that answers with any other refusal is believed. */
export function nextAfter(error: unknown, { targetSession }: DatabaseAddress): "otherTls" | "otherHost" | "stop" {
  if ((error as { code?: unknown } | undefined)?.code === "LF013")
    return targetSession === "any" ? "stop" : "otherHost";
  if (error instanceof TlsFailure) return "otherTls";
  if (error instanceof LoginError) return "stop";
  const sqlState = sqlStateOf(error);
  // pg_hba.conf has no line for this kind of connection.
  if (sqlState === "28000") return "otherTls";
  // Starting, stopping or in recovery without hot standby.
  if (sqlState === "57P03" || sqlState === undefined) return "otherHost";
  return "stop";
}

/** Name resolution cannot be interrupted: what comes late is dropped. */
async function resolve(endpoint: Endpoint, signal: AbortSignal): Promise<string[]> {
  if (isUnixSocket(endpoint)) return [""];
  if (isIP(endpoint.host)) return [endpoint.host];
  const late = new Promise<never>((_, reject) => {
    signal.addEventListener("abort", () => reject(signal.reason), { once: true });
  });
  const found = await Promise.race([lookup(endpoint.host, { all: true }), late]);
  return found.map(({ address }) => address);
}
