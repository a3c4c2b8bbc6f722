import { expect, test } from "vitest";
import { ManualClock } from "../testing/clocks.ts";
import type { HttpClient, HttpRequest } from "./http.ts";
import { serverClock } from "./serverclock.ts";

const START_MS = Date.parse("2026-11-29T13:00:00.300Z");
const READ: HttpRequest = { method: "GET", path: "/x", timeoutMs: 1_000 };

/** A controller whose clock is off by so much, and an API server whose answer takes `onTheWayMs` each way. */
function aController(offMs: number, { onTheWayMs = 5, tells = true } = {}) {
  class Own extends ManualClock {
    override wall = () => new Date(START_MS + this.monoMs() + offMs);
  }
  const own = new Own();
  const server = {
    request: async () => {
      await own.advance(onTheWayMs);
      const date = new Date(START_MS + own.monoMs()).toUTCString();
      await own.advance(onTheWayMs);
      return { status: 200, headers: tells ? { date } : {}, body: {} };
    },
  } as unknown as HttpClient;
  const { clock, over } = serverClock(own);
  const client = over(server);
  return { own, ask: () => client.request(READ), offMs: () => clock.wall().getTime() - START_MS - own.monoMs() };
}

test.each([120_000, -120_000, 0.25 * 86_400_000])(
  "a clock that is off by %i ms goes by the API server's",
  async (offMs) => {
    const { own, ask, offMs: isOffMs } = aController(offMs);
    await ask();
    expect(Math.abs(isOffMs())).toBeLessThanOrEqual(1_000);
    // Each answer says more, as the seconds begin at other moments of the exchange.
    for (let i = 0; i < 30; i++) {
      await own.advance(710);
      await ask();
    }
    expect(Math.abs(isOffMs())).toBeLessThan(50);
  },
);

test("a clock that is right stays as it is, and an answer that was long on its way does not move it", async () => {
  const { own, ask, offMs } = aController(100, { onTheWayMs: 20_000 });
  await own.advance(400);
  await ask();
  expect(offMs()).toBe(100);
});

test("an answer without a date leaves the controller its own clock", async () => {
  const { ask, offMs } = aController(120_000, { tells: false });
  await ask();
  expect(offMs()).toBe(120_000);
});
