import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { readCredentials } from "./credentials.ts";

let dir: string;

beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "fencedjob-secret-"));
});

afterEach(() => rmSync(dir, { recursive: true }));

function read(keys: Record<string, string>) {
  for (const [key, value] of Object.entries(keys)) writeFileSync(join(dir, key), value);
  return readCredentials(dir);
}

const single = { host: "db", dbname: "ledger", user: "app" };

test.each<[what: string, keys: Record<string, string>, want: object]>([
  [
    "an address",
    { uri: "postgres://app:p%40ss@db:6432/ledger?sslmode=verify-full" },
    { host: "db", port: 6432, database: "ledger", user: "app", password: "p@ss", sslmode: "verify-full" },
  ],
  [
    "single keys, with libpq's defaults",
    single,
    { host: "db", port: 5432, database: "ledger", user: "app", sslmode: "prefer" },
  ],
  [
    "a single key beside an address, which wins",
    { uri: "postgres://app:old@db/ledger", password: "new" },
    { host: "db", password: "new" },
  ],
  ["an authority beside an address", { uri: "postgres://app@db/ledger", "ca.crt": "PEM" }, { ca: "PEM" }],
  [
    "values that end with a line end that nobody meant",
    { ...single, password: "p\n", host: "db\r\n" },
    { host: "db", password: "p" },
  ],
  ["a password with a line end in the middle", { ...single, password: "a\nb" }, { password: "a\nb" }],
])("%s", (_what, keys, want) => {
  const credentials = read(keys);
  expect(credentials.ok && credentials.address).toMatchObject(want);
});

test.each<[what: string, keys: Record<string, string>, problem: RegExp]>([
  ["nothing", {}, /lacks host, dbname, user/],
  ["half of it", { host: "db", user: "app" }, /lacks dbname$/],
  ["an address of something else", { uri: "mysql://db" }, /must look like postgres:/],
  ["a port that is none", { ...single, port: "http" }, /port "http" is not a number/],
  ["an unknown sslmode", { ...single, sslmode: "on" }, /sslmode "on" is unknown/],
])("says what is wrong with %s", (_what, keys, problem) => {
  const credentials = read(keys);
  expect(credentials).toMatchObject({ ok: false, problem: expect.stringMatching(problem) });
});

test("never repeats a password in what it says", () => {
  expect(JSON.stringify(read({ uri: "postgres://app:hunter2@db/ledger?sslmode=on" }))).not.toContain("hunter2");
});
