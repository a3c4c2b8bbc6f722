/** The bound of a connection of the fence's own: one for connecting and for what is done on it, and what each is told. */
import { createServer } from "node:net";
import { afterAll, beforeAll, expect, onTestFinished, test } from "vitest";
import { systemClock } from "../platform/clock.ts";
import { type Fenced, failure, startFenced } from "../testing/fenced.ts";
import { onDatabase } from "./connection.ts";
import type { DatabaseAddress } from "./database.ts";

let fenced: Fenced;
beforeAll(async () => {
  fenced = await startFenced();
});
afterAll(() => fenced.stop());

const bounded = (timeoutMs: number, signal?: AbortSignal) => ({
  clock: systemClock,
  timeoutMs,
  signal,
  doing: "a test",
});

/** Takes connections and says nothing. */
async function silent(): Promise<DatabaseAddress> {
  const server = createServer((socket) => void socket.on("error", () => {}));
  onTestFinished(() => void server.close());
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { ...fenced.address, port: (server.address() as { port: number }).port };
}

test("a server that lets nobody in is not reached: nothing was done there", async () => {
  const error = await failure(onDatabase(await silent(), bounded(200), async () => {}));
  expect(error).toMatchObject({ code: "LF015", detail: "The original error is: no answer within 200 ms." });
  expect(error.message).toMatch(/^LF015: the database at 127\.0\.0\.1:\d+ cannot be reached \(a test\)$/);
});

test("a statement without an answer may have been done", async () => {
  const error = await failure(
    onDatabase(fenced.address, bounded(5_000), (client) => client.query("SELECT pg_sleep(60)")),
  );
  expect(error).toMatchObject({
    code: "LF015",
    message: expect.stringMatching(/did not answer in time \(a test\)$/),
    detail: "Nothing came back within 5000 ms; whether it was done there is not known.",
  });
});

test("a caller that gives up gets its own reason, while it connects and while a statement runs", async () => {
  const reason = new Error("the pod ends");
  const connecting = new AbortController();
  const first = failure(onDatabase(await silent(), bounded(60_000, connecting.signal), async () => {}));
  connecting.abort(reason);
  expect(await first).toBe(reason);
  const running = new AbortController();
  const sleeping = onDatabase(fenced.address, bounded(60_000, running.signal), (client) => {
    running.abort(reason);
    return client.query("SELECT pg_sleep(60)");
  });
  expect(await failure(sleeping)).toBe(reason);
});
