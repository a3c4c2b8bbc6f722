/** Logging in to the server for clients that have no credentials, and what they are told when that fails. */
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { DatabaseAddress } from "../../fence/database.ts";
import { makeRole } from "../../fence/role.ts";
import { type Certificates, makeCertificates } from "../../testing/certificates.ts";
import { type Failure, type Fenced, failure, startFenced } from "../../testing/fenced.ts";
import { freePort, oldestAndNewest } from "../../testing/postgres.ts";
import { type ProxyOfTest, serveNewJob } from "../../testing/proxy.ts";

describe.each(oldestAndNewest())("PostgreSQL %i", (version) => {
  let fenced: Fenced;
  let tls: Certificates;

  beforeAll(async () => {
    tls = makeCertificates();
    fenced = await startFenced({
      version,
      settings: { ssl: "on", ssl_cert_file: tls.path("server.crt"), ssl_key_file: tls.path("server.key") },
      hba: [
        "host all by_md5 127.0.0.1/32 md5",
        "host all by_scram 127.0.0.1/32 scram-sha-256",
        "host all by_password 127.0.0.1/32 password",
        "hostssl all by_tls 127.0.0.1/32 scram-sha-256",
        "hostnossl all by_tls 127.0.0.1/32 reject",
        "host all all 127.0.0.1/32 trust",
      ],
    });
    const admin = await fenced.connectAdmin();
    for (const name of ["by_scram", "by_password", "by_tls"])
      await makeRole(fenced.admin, { name, password: "pässword, =" });
    await makeRole(fenced.admin, { name: "by_md5" });
    await admin.query("SET password_encryption = 'md5'");
    await admin.query("ALTER ROLE by_md5 PASSWORD 'pässword, ='");
  });
  afterAll(async () => {
    await fenced.stop();
    tls.remove();
  });

  /** A proxy that logs in as `address` says; the raise itself goes as the plain application role. */
  async function proxyTo(address: Partial<DatabaseAddress>): Promise<ProxyOfTest> {
    return (await serveNewJob(fenced, { address: { ...fenced.address, ...address } })).proxy;
  }
  const ca = (name: string): string => tls.pem(`${name}.crt`);
  const whoami = "SELECT current_user AS user, ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";

  test.each([["by_md5"], ["by_scram"], ["by_password"]])("%s", async (user) => {
    const proxy = await proxyTo({ user, password: "pässword, =" });
    const client = await proxy.connect();
    expect((await client.query(whoami)).rows).toEqual([{ user, ssl: false }]);
    const refused = await failure((await proxyTo({ user, password: "wrong" })).connect());
    expect(refused).toMatchObject({ severity: "FATAL", code: "LF016" });
    expect(refused.message).toMatch(/refuses the password of role/);
    const without = await failure((await proxyTo({ user })).connect());
    expect(without.message).toMatch(/^LF016: .*asks for a password, and none is given/);
  });

  test("what the client sends as user and password does not matter", async () => {
    const client = await (await proxyTo({})).connect({ user: "somebody", password: "else" });
    expect((await client.query(whoami)).rows[0].user).toBe("invoice_app");
  });

  test.each<[DatabaseAddress["sslmode"], string, string | undefined, boolean]>([
    ["disable", "127.0.0.1", undefined, false],
    ["allow", "127.0.0.1", undefined, false],
    ["prefer", "127.0.0.1", undefined, true],
    ["require", "127.0.0.1", undefined, true],
    ["require", "127.0.0.1", "ca", true],
    ["verify-ca", "127.0.0.1", "ca", true],
    ["verify-full", "localhost", "ca", true],
  ])("sslmode=%s to %s with authority %s → TLS %s", async (sslmode, host, authority, ssl) => {
    const client = await (await proxyTo({ sslmode, host, ...(authority ? { ca: ca(authority) } : {}) })).connect();
    expect((await client.query(whoami)).rows[0].ssl).toBe(ssl);
    // Large answers and cancels go through TLS as well.
    expect((await client.query("SELECT repeat('x', 3000000) AS x")).rows[0].x.length).toBe(3_000_000);
  });

  test.each<[string, Partial<DatabaseAddress>]>([
    ["verify-ca with another authority", { sslmode: "verify-ca" }],
    ["require with another authority", { sslmode: "require" }],
    ["verify-full with a name that is not in the certificate", { sslmode: "verify-full", host: "127.0.0.1", ca: "" }],
  ])("is refused: %s", async (_what, address) => {
    const error = await failure((await proxyTo({ ...address, ca: ca(address.ca === "" ? "ca" : "other") })).connect());
    expect(error).toMatchObject({ severity: "FATAL", code: "LF015" });
    expect(error.message).toMatch(/no TLS connection/);
  });

  test("sslmode=allow goes over to TLS where the server demands it", async () => {
    const client = await (await proxyTo({ user: "by_tls", password: "pässword, =", sslmode: "allow" })).connect();
    expect((await client.query(whoami)).rows).toEqual([{ user: "by_tls", ssl: true }]);
  });

  test.each<[string, Partial<DatabaseAddress>, RegExp]>([
    ["a superuser", { user: "postgres" }, /^LF010: /],
    ["a role without the fence's rights", { user: "outsider" }, /^LF01[12]: /],
    ["a database that does not exist", { database: "nowhere" }, /^LF015: database "nowhere" does not exist/],
  ])("is refused with the reason: %s", async (_what, address, want) => {
    await (await fenced.connectAdmin()).query("DROP ROLE IF EXISTS outsider; CREATE ROLE outsider LOGIN");
    const proxy = await proxyTo(address);
    const error = await failure(proxy.connect(address.database ? { database: address.database } : {}));
    expect(error.message).toMatch(want);
    expect(error).toMatchObject({ severity: "FATAL" });
    expect(error.hint).toBeTruthy();
  });

  test("an unreachable server is LF015 that names the address", async () => {
    const port = await freePort();
    const error = await failure((await proxyTo({ port })).connect());
    expect(error).toMatchObject({ code: "LF015", severity: "FATAL" });
    expect(error.message).toContain(`127.0.0.1:${port}`);
  });

  test("another database name is refused, and the right one named", async () => {
    const error: Failure = await failure((await proxyTo({})).connect({ database: "else" }));
    expect(error).toMatchObject({ code: "3D000", severity: "FATAL" });
    expect(error.hint).toContain("dbname=postgres");
  });

  test("a client's bad setting is the server's own error", async () => {
    const error = await failure((await proxyTo({})).connect({ options: "-c nosuch=1" }));
    expect(error).toMatchObject({ code: "42704", severity: "FATAL" });
  });
});
