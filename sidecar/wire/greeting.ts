/** What a client is told at the beginning of its session. Pure. */
import { authenticationOk, backendKey, IDLE, parameterStatus, readyForQuery } from "./messages.ts";
import type { StartupPlan } from "./startup.ts";
import type { Upstream } from "./upstream.ts";

/** `key`: the proxy's, which stands for the server's own. */
export function greeting(upstream: Upstream, plan: StartupPlan, key: Buffer): Buffer {
  const parts = plan.negotiate ? [plan.negotiate] : [];
  parts.push(authenticationOk());
  for (const [name, value] of upstream.parameters) {
    // The read-only default is our seat belt; a client that looks for a writable session must not shy at it.
    const shown = name === "default_transaction_read_only" ? (plan.readOnlyDefault ? "on" : "off") : value;
    parts.push(parameterStatus(name, shown));
  }
  if (upstream.key.length > 0) parts.push(backendKey(upstream.pid, key));
  parts.push(readyForQuery(IDLE));
  return Buffer.concat(parts);
}
