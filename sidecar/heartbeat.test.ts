/** Heartbeats while a Secret changes, without a database. */
import { expect, test } from "vitest";
import type { Connect } from "../fence/connection.ts";
import type { DatabaseAddress } from "../fence/database.ts";
import type { SidecarConfig } from "../lease/sidecarconfig.ts";
import { systemClock } from "../platform/clock.ts";
import { silentLogger } from "../platform/log.ts";
import { systemRandom } from "../platform/random.ts";
import { keepBeating } from "./heartbeat.ts";
import { type RaisedDatabase, Raiser } from "./raiser.ts";

const address: DatabaseAddress = { host: "db", port: 5432, database: "ledger", user: "app", sslmode: "prefer" };

test("a password that is changed in the Secret first keeps no heartbeat from its database, however often that is", async () => {
  const over = new AbortController();
  let inDatabase = "a";
  let inSecret = "a";
  const connect = (async ({ password }, _options, use) => {
    if (password !== inDatabase) throw Object.assign(new Error("refused"), { code: "28P01", severity: "FATAL" });
    return await use({ query: async () => ({ rows: [] }) } as never);
  }) as Connect;
  const parts = {
    identity: { fenceName: "n/run", generation: 1, holder: "uid-1", holderName: "run-1" },
    clock: systemClock,
    random: systemRandom,
    log: silentLogger,
  };
  const raiser = new Raiser({
    ...parts,
    config: {} as SidecarConfig,
    nonce: "n",
    changed: () => {},
    databases: {
      credentials: () => ({ ok: true, address: { ...address, password: inSecret } }),
      connect,
      probe: async () => null,
    },
    earlier: [],
  });
  const one = {
    database: { name: "ledger", port: 5432, secretName: "s", dir: "/" },
    address: { ...address, password: "a" },
    raised: { jobId: 1, incarnation: "i", witness: { counter: 0, nonce: "n" } },
  } as RaisedDatabase;
  // Secret, database, Secret: each change is met by a heartbeat in between.
  const changes = [
    () => (inSecret = "b"),
    () => (inDatabase = "b"),
    () => (inSecret = "c"),
    () => (inDatabase = "c"),
    () => over.abort(),
  ];
  const beaten: unknown[] = [];
  await keepBeating(
    {
      ...parts,
      one,
      reach: (use) => raiser.reach(one, use),
      intervalMs: 10,
      connect,
      confirmed: (_witness, { password }) => {
        beaten.push(password);
        changes.shift()?.();
      },
      lost: () => over.abort(),
      failed: () => over.abort(),
      mended: () => {},
    },
    AbortSignal.any([over.signal, AbortSignal.timeout(60_000)]),
  );
  expect(beaten).toEqual(["a", "a", "b", "b", "c"]);
});
