/**
 * A clock whose wall time is the API server's, as the `Date` of its answers shows it: the times in a status are compared by controllers
 * whose own clocks may be minutes apart.
 *
 * Does NOT make them equal: the header has whole seconds, and API servers may differ among each other. No safety rests on it.
 */
import type { Clock } from "./clock.ts";
import type { HttpClient } from "./http.ts";

export interface ServerClock {
  readonly clock: Clock;
  /** A connection to the API server whose answers set the clock. */
  over(client: HttpClient): HttpClient;
}

const DATE_STEP_MS = 1_000;

export function serverClock(own: Clock): ServerClock {
  // Its wall time less our monotonic one: as ours says, until an answer knows better.
  let offsetMs = own.wall().getTime() - own.monoMs();
  const heard = (date: string | undefined, sentMs: number): void => {
    const dateMs = Date.parse(date ?? "");
    if (Number.isNaN(dateMs)) return;
    // It was answered between the two, in the second that it names. Only what contradicts that moves the clock: it would tremble else.
    const [least, most] = [dateMs - own.monoMs(), dateMs + DATE_STEP_MS - sentMs];
    offsetMs = Math.min(Math.max(offsetMs, least), most);
  };
  return {
    clock: {
      monoMs: () => own.monoMs(),
      wall: () => new Date(own.monoMs() + offsetMs),
      sleep: (ms, signal) => own.sleep(ms, signal),
      after: (ms, fn) => own.after(ms, fn),
    },
    over: (client) => ({
      ...client,
      request: async (request) => {
        const sentMs = own.monoMs();
        const response = await client.request(request);
        heard(response.headers.date, sentMs);
        return response;
      },
    }),
  };
}
