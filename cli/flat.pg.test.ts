/**
 * The memory of the proxy's process does not follow the size of what goes through it: parameters, rows and COPY are passed
 * on in pieces, and a client or a server that takes nothing stops the other one.
 *
 * `FLAT=real` sends the sizes that users have had trouble with, up to 2 GB; they take a minute or two.
 */
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { Flood, MIB } from "../bench/flood.ts";
import { forgetPeak, resident } from "../bench/processfacts.ts";
import { type Fenced, startFenced } from "../testing/fenced.ts";
import { type ProxyProcess, startProxyProcess } from "../testing/proxyprocess.ts";

const REAL = process.env.FLAT === "real";
/** In MiB. */
const SIZES = REAL
  ? { parameters: [1, 20, 900], result: 2048, copy: 1024 }
  : { parameters: [1, 20, 64], result: 128, copy: 128 };
/** The most that the process may hold, whatever is sent: a bound of the product, not what it needs. */
const RESIDENT_KB_MAX = 192 * 1024;

describe.skipIf(process.platform !== "linux")("memory stays flat", () => {
  let fenced: Fenced;
  let proxy: ProxyProcess;

  beforeAll(async () => {
    fenced = await startFenced();
    const admin = await fenced.connectAdmin();
    await admin.query("GRANT TEMP ON DATABASE postgres TO invoice_app");
    proxy = await startProxyProcess({ address: fenced.address, fenceName: "cli/flat", generation: 1 });
  });
  afterAll(async () => {
    await proxy.stop();
    await fenced.stop();
  });

  async function flood(load: string, run: (client: Flood) => Promise<void>): Promise<void> {
    const client = await Flood.open({ host: "127.0.0.1", port: proxy.port, user: "invoice_app", database: "postgres" });
    forgetPeak(proxy.pid);
    const { nowKb } = resident(proxy.pid);
    await run(client);
    client.end();
    const { peakKb } = resident(proxy.pid);
    console.info(`${load}: ${nowKb} kB before, at most ${peakKb} kB`);
    expect(peakKb).toBeLessThan(RESIDENT_KB_MAX);
  }

  test.each(SIZES.parameters)("a parameter of %d MiB", { timeout: 300_000 }, async (mib) => {
    await flood(`a parameter of ${mib} MiB`, (client) => client.sendParameter("SELECT length($1::text)", mib));
  });

  test(`${SIZES.result} MiB of rows to a client that reads slowly`, { timeout: 300_000 }, async () => {
    const sql = `SELECT repeat('x', ${MIB}) FROM generate_series(1, ${SIZES.result})`;
    await flood(`${SIZES.result} MiB of rows`, (client) => client.takeSlowly(sql));
  });

  test(`COPY of ${SIZES.copy} MiB to a client that reads slowly`, { timeout: 300_000 }, async () => {
    const sql = `COPY (SELECT repeat('x', ${MIB} - 1) FROM generate_series(1, ${SIZES.copy})) TO STDOUT`;
    await flood(`COPY of ${SIZES.copy} MiB out`, (client) => client.takeSlowly(sql));
  });

  test(`COPY of ${SIZES.copy} MiB from a client`, { timeout: 300_000 }, async () => {
    const sql = "CREATE TEMPORARY TABLE sink (bytes text); COPY sink FROM STDIN";
    await flood(`COPY of ${SIZES.copy} MiB in`, (client) => client.copyIn(sql, SIZES.copy));
  });
});
