/**
 * The API server as a controller may use it: while it leads, or acts for a leader that is silent.
 *
 * Does NOT stop what was sent before that ended: it is conditional on what was read (INV-9), which is also why two
 * controllers that act at once do no harm. A term spares the API server and the logs, and is no matter of safety.
 */
import type { Term } from "../lease/election.ts";
import { type HttpClient, HttpError } from "../platform/http.ts";

/** `valid` is asked for each attempt of each request; what is under way at the end of the term is given up. */
export function clientDuring(term: Term, client: HttpClient): HttpClient {
  return {
    ...client,
    request: async (request) => {
      if (!term.valid()) {
        const what = `${request.method} ${request.path.split("?")[0]}`;
        throw new HttpError("aborted", `${what}: not sent, as another controller may lead by now`, false);
      }
      const signal = request.signal ? AbortSignal.any([request.signal, term.signal]) : term.signal;
      return client.request({ ...request, signal });
    },
  };
}
