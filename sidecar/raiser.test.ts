/** What is told of a database that cannot be raised, for the person who is woken up by it. */
import { expect, test } from "vitest";
import type { SidecarConfig } from "../lease/sidecarconfig.ts";
import { systemClock } from "../platform/clock.ts";
import { silentLogger } from "../platform/log.ts";
import { systemRandom } from "../platform/random.ts";
import { Raiser } from "./raiser.ts";

test("LF017: the command gives the Secret an address, whether it is missing or there without one", async () => {
  const over = new AbortController();
  const database = { name: "ledger", port: 5432, secretName: "ledger-db", dir: "/nowhere" };
  const unused = (): never => {
    throw new Error("nothing is connected to without an address");
  };
  const raiser = new Raiser({
    config: {
      namespace: "billing",
      job: "run",
      fenceName: "billing/run",
      databases: [database],
    } as Partial<SidecarConfig> as SidecarConfig,
    identity: { fenceName: "billing/run", generation: 1, holder: "uid-1", holderName: "run-1" },
    nonce: "n",
    clock: systemClock,
    random: systemRandom,
    log: silentLogger,
    changed: () => over.abort(),
    databases: {
      credentials: () => ({ ok: false, problem: "it has no key `uri`" }),
      connect: unused,
      probe: unused,
    },
    earlier: [],
  });
  await raiser.raiseAll(over.signal).catch(() => {});
  const [failure] = raiser.failures;
  expect(failure).toMatchObject({ code: "LF017", message: expect.stringContaining('Secret "ledger-db"') });
  // `create` alone refuses one that is there; `apply` adds the key to it.
  expect(failure?.hint).toMatch(
    /: kubectl create secret generic -n billing ledger-db --from-literal=uri='postgres:\/\/…' --dry-run=client -o yaml \| kubectl apply -f - ;/,
  );
});
