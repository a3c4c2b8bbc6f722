/** The job's Lease as the pod's own account may use it: nothing else of Kubernetes, as its rights allow. */
import { readFile } from "node:fs/promises";
import { LeaseClient, type LeaseName } from "../lease/client.ts";
import type { Clock } from "../platform/clock.ts";
import { httpClient } from "../platform/http.ts";

export interface LeaseClientOptions extends LeaseName {
  /** `https://host:port` of the API server. */
  readonly baseUrl: string;
  /** Files of the projected service account volume, read anew for each request. */
  readonly tokenPath: string;
  readonly caPath: string;
  readonly clock: Clock;
}

export function openLeaseClient({ baseUrl, tokenPath, caPath, clock, ...lease }: LeaseClientOptions): LeaseClient {
  const credentials = async () => {
    const [token, ca] = await Promise.all([readFile(tokenPath, "utf8"), readFile(caPath, "utf8")]);
    return { headers: { authorization: `Bearer ${token.trim()}` }, tls: { ca } };
  };
  return new LeaseClient(httpClient({ baseUrl, clock, credentials }), lease);
}
