import type { Client } from "pg";
import { expect, test } from "vitest";
import { systemClock } from "../platform/clock.ts";
import type { DatabaseAddress } from "./database.ts";
import { Drain } from "./drain.ts";

test("LF004: the statement that lets a raise go on can be pasted, whatever a prepared transaction is called", async () => {
  const looked = Promise.withResolvers<void>();
  const blocker = { pid: 0, username: "app", application: null, state: "prepared", busy_seconds: 9, prepared: "Bob's" };
  const client = {
    query: async (sql: string) => {
      if (!sql.includes("fence.blockers")) return { rows: [] };
      looked.resolve();
      return { rows: [blocker] };
    },
  };
  const identity = { fenceName: "billing/run", generation: 2, holder: "uid-2", holderName: "run-2" };
  const drain = new Drain({} as DatabaseAddress, identity, {
    clock: systemClock,
    connect: async (_address, _options, use) => use(client as unknown as Client),
    doing: "raise",
    ending: { text: "", values: [] },
    pid: 1,
    sessionsEnded: new Set(),
  });
  drain.start(0);
  await looked.promise;
  await drain.stop();
  expect(drain.blocked(null).hint).toContain("ROLLBACK PREPARED 'Bob''s'.");
});
