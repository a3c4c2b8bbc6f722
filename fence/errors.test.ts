/** What an administrator is told who runs `fencedjob db install` and `db role` without the rights, or in the wrong order. */
import { expect, test } from "vitest";
import type { DatabaseAddress } from "./database.ts";
import { toAdministrator, toFenceError } from "./errors.ts";

const address: DatabaseAddress = { host: "db", port: 5432, database: "ledger", user: "dev", sslmode: "prefer" };
/** As node-postgres brings it. */
const ofServer = (code: string, message: string): Error =>
  Object.assign(new Error(message), { code, severity: "ERROR" });
const told = (error: Error) => toFenceError(toAdministrator(error, address), address, "db role");

test("a right that an administrator lacks is no application's: not `db role`, which he may be running, but another role", () => {
  const refused = told(ofServer("42501", "permission denied to create role"));
  expect(refused).toMatchObject({ code: "LF012", detail: expect.stringContaining("permission denied to create role") });
  expect(refused.hint).toMatch(/^Run it as an administrator/);
  expect(refused.hint).not.toContain("db role");
});

test("`db role` in front of `db install` is told so, and not to look at the address", () => {
  const refused = told(ofServer("42704", 'role "fence_sidecar" does not exist'));
  expect(refused).toMatchObject({ code: "LF011", hint: expect.stringContaining("fencedjob db install") });
});

test("what the database answers that nobody has foreseen sends nobody to look at its address", () => {
  const { detail, hint } = told(ofServer("53100", "could not extend file: No space left on device"));
  expect(detail).toContain("No space left on device");
  expect(hint).toMatch(/^See what PostgreSQL says/);
  expect(hint).not.toMatch(/address|TLS/);
});

test("whatever else fails is what it was", () => {
  const error = ofServer("53300", "too many clients");
  expect(toAdministrator(error, address)).toBe(error);
});
