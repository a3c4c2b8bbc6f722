/** psql's whole output, direct against through the proxy, for every script of `corpus/`. */
import { execFile } from "node:child_process";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { promisify } from "node:util";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { install } from "../../fence/client.ts";
import { type Fenced, startFenced } from "../../testing/fenced.ts";
import { startFencedProxy } from "./fixture.ts";

const CORPUS = join(import.meta.dirname, "corpus");
const PSQL = "/usr/bin/psql";
const scripts = readdirSync(CORPUS).filter((file) => file.endsWith(".sql"));

async function runScript(file: string, port: number, database: string): Promise<string> {
  const args = ["-X", "-a", "-h", "127.0.0.1", "-p", String(port), "-U", "invoice_app", "-d", database, "-f", file];
  const env = { PATH: "/usr/bin:/bin", LC_ALL: "C.UTF-8", PGSSLMODE: "prefer", PAGER: "" };
  const { stdout, stderr } = await promisify(execFile)(PSQL, args, { env, maxBuffer: 64 * 1024 * 1024 });
  return normalized(`${stdout}\n=== stderr\n${stderr}`, database);
}

/** What differs between two runs of the same server: names of the databases, pids. */
function normalized(text: string, database: string): string {
  return text
    .replaceAll(/PID \d+/g, "PID n")
    .replaceAll(`"${database}"`, "DATABASE")
    .replaceAll(/^psql:[^ ]*?(\w+\.sql:\d+)/gm, "psql:$1");
}

const why = existsSync(PSQL) ? "" : "psql is not installed (Debian: postgresql-client)";
if (why) console.warn(`skipped: ${why}`);

describe.skipIf(why).each([15, 18] as const)("PostgreSQL %i", (version) => {
  let fenced: Fenced;

  beforeAll(async () => {
    fenced = await startFenced({ version });
    const admin = await fenced.connectAdmin();
    await admin.query("CREATE DATABASE corpus");
    await install({ ...fenced.admin, database: "corpus" });
  });
  afterAll(() => fenced.stop());

  test.each(scripts)("%s", async (script) => {
    const admin = await fenced.connectAdmin();
    const file = join(CORPUS, script);
    for (const name of ["direct", "proxied"]) {
      await admin.query(`DROP DATABASE IF EXISTS ${name} WITH (FORCE)`);
      await admin.query(`CREATE DATABASE ${name} OWNER invoice_app TEMPLATE corpus`);
    }
    await admin.end();
    const address = { ...fenced.address, database: "proxied" };
    const job = fenced.job("corpus");
    const proxy = await startFencedProxy(
      { ...job, address, raise: (generation) => job.raise(generation, { address }) },
      1,
    );
    try {
      const want = await runScript(file, fenced.postgres.port, "direct");
      expect(await runScript(file, proxy.port, "proxied")).toBe(want);
      expect(want).toContain(readFileSync(file, "utf8").split("\n")[0]);
    } finally {
      await proxy.stop();
    }
  });
});
