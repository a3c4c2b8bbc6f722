/** What only a process of its own can show of connecting: the machine's authorities, and libpq's own settings. */
import { execFile } from "node:child_process";
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { promisify } from "node:util";
import { afterAll, beforeAll, expect, test } from "vitest";
import { type Certificates, makeCertificates } from "../testing/certificates.ts";
import { type Fenced, startFenced } from "../testing/fenced.ts";
import { serveNewJob } from "../testing/proxy.ts";

const run = promisify(execFile);
let fenced: Fenced;
let certificates: Certificates;
beforeAll(async () => {
  certificates = makeCertificates();
  mkdirSync(certificates.path("empty"));
  const [certificate, key] = [certificates.path("server.crt"), certificates.path("server.key")];
  fenced = await startFenced({ settings: { ssl: "on", ssl_cert_file: certificate, ssl_key_file: key } });
});
afterAll(async () => {
  await fenced.stop();
  certificates.remove();
});

test("sslrootcert=system trusts whom the machine trusts, and verifies the name", async () => {
  const status = async (host: string, authority: string): Promise<string> => {
    const url = `postgres://invoice_app@${host}:${fenced.postgres.port}/postgres?sslrootcert=system`;
    const command = [join(import.meta.dirname, "fencedjob.ts"), "db", "status", "--database-url", url];
    const env = {
      ...process.env,
      SSL_CERT_FILE: certificates.path(authority),
      SSL_CERT_DIR: certificates.path("empty"),
    };
    return await run(process.execPath, command, { env }).then(
      ({ stdout }) => stdout,
      (error: { stderr: string }) => error.stderr,
    );
  };
  expect(await status("localhost", "ca.crt")).toMatch(/can run a fenced application/);
  expect(await status("127.0.0.1", "ca.crt")).toMatch(/^LF015: no TLS connection/);
  expect(await status("localhost", "other.crt")).toMatch(/^LF015: no TLS connection/);
});

test("B07: what libpq asks for at the start of a session is what SHOW says, directly and through the proxy, before and after RESET ALL", async () => {
  const admin = await fenced.connectAdmin();
  await admin.query("CREATE SCHEMA s1; GRANT USAGE ON SCHEMA s1 TO invoice_app");
  const { proxy } = await serveNewJob(fenced);
  const names = [
    "search_path",
    "lock_timeout",
    "application_name",
    "extra_float_digits",
    "DateStyle",
    "TimeZone",
    "client_encoding",
  ];
  const shows = names.flatMap((name) => ["-c", `SHOW ${name}`]);
  const shown = async (port: number): Promise<string> => {
    const env = {
      ...process.env,
      PGOPTIONS: "-c search_path=s1 -c lock_timeout=2s -c extra_float_digits=2",
      PGAPPNAME: "invoices",
      PGDATESTYLE: "German, DMY",
      PGTZ: "Asia/Tokyo",
      PGCLIENTENCODING: "LATIN1",
    };
    const where = `host=127.0.0.1 port=${port} user=invoice_app dbname=postgres`;
    return (await run("psql", ["-XAt", ...shows, "-c", "RESET ALL", ...shows, where], { env })).stdout;
  };
  const direct = await shown(fenced.postgres.port);
  expect(direct.split("\n").slice(0, 4)).toEqual(["s1", "2s", "invoices", "2"]);
  expect(await shown(proxy.port)).toBe(direct);
});
