/**
 * The API server as a controller may use it: during a term, and not without a valid permit (INV-5).
 *
 * Does NOT stop what was sent before the term ended: that is conditional on what was read (INV-9).
 */
import type { Term } from "../lease/election.ts";
import { type HttpClient, HttpError } from "../platform/http.ts";

/** `term` is asked for each attempt of each request; what is under way at the end of a term is given up. */
export function leadersClient(client: HttpClient, term: () => Term | null): HttpClient {
  return {
    ...client,
    request: async (request) => {
      const present = term();
      if (!present?.valid()) {
        const what = `${request.method} ${request.path.split("?")[0]}`;
        throw new HttpError("aborted", `${what}: not sent, as another controller may lead by now`, false);
      }
      const signal = request.signal ? AbortSignal.any([request.signal, present.signal]) : present.signal;
      return client.request({ ...request, signal });
    },
  };
}
