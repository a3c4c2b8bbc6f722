import { execFile } from "node:child_process";
import { join } from "node:path";
import pg from "pg";
import { afterAll, beforeAll, expect, onTestFinished, test } from "vitest";
import { startPostgres, type TestPostgres } from "../testing/postgres.ts";

let postgres: TestPostgres;
beforeAll(async () => {
  postgres = await startPostgres({});
});
afterAll(() => postgres?.remove());

/** Runs `fencedjob db …` as a user would; what it says, and its exit code. */
function db(databaseUrl: string, ...args: string[]): Promise<{ code: number; said: string }> {
  const program = join(import.meta.dirname, "fencedjob.ts");
  return new Promise((resolve) => {
    const env = { ...process.env, DATABASE_URL: databaseUrl };
    execFile("node", [program, "db", ...args], { env }, (error, stdout, stderr) => {
      resolve({ code: error ? Number(error.code) : 0, said: stdout + stderr });
    });
  });
}

test("from an empty database to a raised fence, each command says what it did and what to do next", async () => {
  const admin = postgres.url();
  const app = admin.replace("postgres@", "invoice_app@");

  expect(await db(admin, "status")).toMatchObject({ code: 1, said: expect.stringContaining("fencedjob db install") });
  expect(await db(admin, "install")).toMatchObject({
    code: 0,
    said: expect.stringMatching(/^Installed the fence schema/),
  });
  expect(await db(admin, "install")).toMatchObject({ code: 0, said: expect.stringContaining("installed already") });
  expect(await db(admin, "status")).toMatchObject({ code: 1, said: expect.stringContaining("LF010") });
  expect(await db(admin, "role", "--name", "invoice_app")).toMatchObject({
    code: 0,
    said: expect.stringContaining("created"),
  });
  expect(await db(app, "status")).toMatchObject({
    code: 0,
    said: expect.stringContaining("can run a fenced application"),
  });

  const raise = (generation: string) => db(app, "raise", "--job", "billing/invoice-run", "--generation", generation);
  expect(await raise("3")).toMatchObject({ code: 0, said: expect.stringMatching(/fence none → 3 in \d+ ms/) });
  const refused = await raise("2");
  expect(refused.code).toBe(1);
  expect(refused.said).toMatch(/^LF001: generation 2 .*\nDETAIL: .*\nHINT: {3}/);
  expect(await db(app, "status", "--job", "billing/invoice-run")).toMatchObject({
    code: 0,
    said: expect.stringContaining("generation 3"),
  });
  // A mistyped bound is none: it closes nothing.
  expect(await db(app, "close", "--job", "billing/invoice-run", "--generation", "2O")).toMatchObject({
    code: 1,
    said: expect.stringContaining("must be a whole number"),
  });
  const close = (job: string) => db(app, "close", "--job", job);
  for (const _ of ["closes", "closed already"]) {
    expect(await close("billing/invoice-run")).toMatchObject({
      code: 0,
      said: expect.stringContaining("generation 3 closed"),
    });
  }
  // Of somebody who has raised above the one that was to be closed, another cluster perhaps.
  expect(await db(app, "close", "--job", "billing/invoice-run", "--generation", "2")).toMatchObject({
    code: 0,
    said: expect.stringContaining("left alone"),
  });
  expect(await close("billing/another")).toMatchObject({ code: 0, said: expect.stringContaining("nothing to close") });
});

test.each([
  ["DELETE FROM fence.schema_version WHERE version = (SELECT max(version) FROM fence.schema_version)", /db install/],
  ["INSERT INTO fence.schema_version SELECT max(version) + 2 FROM fence.schema_version", /Use the fencedjob that/],
])("db status says what to do about a schema of another version: %s", async (change, words) => {
  const admin = new pg.Client(postgres.url());
  await admin.connect();
  onTestFinished(() => admin.end());
  await db(postgres.url(), "install");
  const { rows } = await admin.query("SELECT version FROM fence.schema_version");
  await admin.query(change);
  const { code, said } = await db(postgres.url(), "status");
  await admin.query("DELETE FROM fence.schema_version");
  await admin.query("INSERT INTO fence.schema_version (version) SELECT unnest($1::int[])", [
    rows.map((r) => r.version),
  ]);
  expect(code).toBe(1);
  expect(said).toMatch(words);
});

test.each([
  ["raise", "--generation", "1", "--job", ""],
  ["close", "--job", ""],
  ["status", "--job", ""],
  ["protect", "invoice", "--job", ""],
  ["raise", "--generation", "1", "--job", "billing/empty", "--holder", ""],
  ["role", "--name", ""],
  // The server would take the password away.
  ["role", "--name", "invoice_app", "--password", ""],
])(
  "what a shell's variable that is not set leaves empty is refused before anything is done: db %s",
  async (...args) => {
    const { code, said } = await db(postgres.url(), ...args);
    expect(code).toBe(1);
    expect(said).toMatch(/^error: option '--\w+ .*it is empty\n$/);
  },
);

test("a wrong URL is named without its password", async () => {
  const { code, said } = await db("mysql://a:secret@b/c", "status");
  expect(code).toBe(1);
  expect(said).toContain("postgres://user:password@host:5432/database");
  expect(said).not.toContain("secret");
});
