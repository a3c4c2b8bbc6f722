/** B17: what psql, and so libpq, says and returns when its generation is over. Nothing looks like success. */
import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { type Fenced, startFenced, until } from "../testing/fenced.ts";
import { oldestAndNewest } from "../testing/postgres.ts";
import { serveNewJob } from "../testing/proxy.ts";

const PSQL = "/usr/bin/psql";
/** psql's exit code for a connection that went bad. */
const CONNECTION_LOST = 2;

describe.skipIf(!existsSync(PSQL)).each(oldestAndNewest())("PostgreSQL %i", (version) => {
  let fenced: Fenced;

  beforeAll(async () => {
    fenced = await startFenced({ version });
    const admin = await fenced.connectAdmin();
    await admin.query("CREATE TABLE w (i int); GRANT ALL ON w TO invoice_app");
  });
  afterAll(() => fenced.stop());

  interface Ended {
    readonly code: number | null;
    readonly said: string;
    readonly failed: string;
  }

  /** Its first lines, then, once `meanwhile` is done, the rest; the end of its input. */
  async function psql(port: number, first: string, meanwhile: () => Promise<void>, rest: string): Promise<Ended> {
    const child = spawn(PSQL, ["-X", `host=127.0.0.1 port=${port} user=me dbname=postgres application_name=psql`]);
    let [said, failed] = ["", ""];
    child.stdout.on("data", (chunk) => {
      said += chunk;
    });
    child.stderr.on("data", (chunk) => {
      failed += chunk;
    });
    const ended = new Promise<number | null>((resolve) => child.once("close", resolve));
    child.stdin.on("error", () => {});
    child.stdin.write(first);
    await meanwhile();
    child.stdin.end(rest);
    return { code: await ended, said, failed };
  }

  const expectOver = ({ code, failed }: Ended): void => {
    expect(code).toBe(CONNECTION_LOST);
    expect(failed).toMatch(/FATAL: {2}LF001: generation 1 of FencedJob "test\/served-\d+" is over\nDETAIL: .*\nHINT: /);
  };

  test.each([
    [
      "the COMMIT of a block",
      "BEGIN;\nINSERT INTO w VALUES (1);\n",
      "COMMIT;\nSELECT 'goes on';\n",
      "idle in transaction",
    ],
    [
      "one more write in a block",
      "BEGIN;\nINSERT INTO w VALUES (1);\n",
      "INSERT INTO w VALUES (2);\nCOMMIT;\n",
      "idle in transaction",
    ],
    ["a write of an idle session", "INSERT INTO w VALUES (0);\n", "INSERT INTO w VALUES (1);\n", "idle"],
    ["a COPY of an idle session", "INSERT INTO w VALUES (0);\n", "\\copy w FROM STDIN\n1\n\\.\n", "idle"],
  ])("%s behind a takeover", async (_what, first, rest, state) => {
    const { job, proxy } = await serveNewJob(fenced);
    const admin = await fenced.connectAdmin();
    await admin.query("TRUNCATE w");
    const ended = await psql(
      proxy.port,
      first,
      async () => {
        const waits = "application_name = 'psql' AND state = $1 AND query LIKE '%INSERT%'";
        await until(admin, `SELECT count(*) = 1 FROM pg_stat_activity WHERE ${waits}`, [state]);
        await job.raise(2);
      },
      rest,
    );
    expectOver(ended);
    expect(ended.said).not.toMatch(/COMMIT|goes on|COPY/);
    expect((await admin.query("SELECT FROM w WHERE i > 0")).rowCount).toBe(0);
  });

  test("a new connection", async () => {
    const { job, proxy } = await serveNewJob(fenced);
    await job.raise(2);
    expectOver(await psql(proxy.port, "", async () => {}, "INSERT INTO w VALUES (1);\n"));
  });
});
