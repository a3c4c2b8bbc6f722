import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { type Certificates, makeCertificates } from "../testing/certificates.ts";
import type { DatabaseAddress } from "./database.ts";
import { addressFromUrl } from "./url.ts";

let certificates: Certificates;
beforeAll(() => {
  certificates = makeCertificates();
});
afterAll(() => certificates.remove());

const full = { host: "db", port: 6432, database: "ledger", user: "app" };

test.each<[url: string, want: Partial<DatabaseAddress>]>([
  ["postgres://app:p%40ss@db:6432/ledger", { ...full, password: "p@ss", sslmode: "prefer" }],
  ["postgresql://app@db:6432/ledger?sslmode=require", { ...full, sslmode: "require" }],
  ["postgres://app:a@b:c#d@db:6432/ledger", { ...full, password: "a@b:c#d" }],
  ["postgres://app@[::1]:6432/ledger", { ...full, host: "::1" }],
  ["postgres://app@db", { host: "db", port: 5432, database: "app" }],
  ["postgres://app@/ledger", { host: "localhost", port: 5432 }],
  ["postgres://?host=db&port=6432&dbname=ledger&user=app&password=p%25", { ...full, password: "p%" }],
  ["postgres://?host=db&port=6432&dbname=ledger&password=p@ss&user=app", { ...full, password: "p@ss" }],
  ["postgres://app@one/ledger?host=db&port=6432", full],
  ["postgres://app@/ledger?host=/var/run/postgresql", { host: "/var/run/postgresql", port: 5432 }],
  ["postgres://app@%2Fvar%2Frun:6432/ledger", { host: "/var/run", port: 6432 }],
  [
    "postgres://app@db:6432,[::2]:1,c/ledger",
    {
      ...full,
      furtherHosts: [
        { host: "::2", port: 1 },
        { host: "c", port: 5432 },
      ],
    },
  ],
  ["postgres://app@db,b/ledger?port=6432", { ...full, furtherHosts: [{ host: "b", port: 6432 }] }],
  [
    "postgres://app@db:6432/ledger?target_session_attrs=any&connect_timeout=1",
    { targetSession: "any", connectTimeoutMs: 2000 },
  ],
  [
    "postgres://app@db/ledger?keepalives_idle=7&connect_timeout=9&sslsni=0",
    { keepAliveIdleMs: 7000, connectTimeoutMs: 9000, sslSni: false },
  ],
  ["postgres://app@db/ledger?keepalives=0&keepalives_idle=7", { keepAliveIdleMs: 0 }],
  [
    "postgres://app@db/ledger?sslmode=require&channel_binding=require&sslnegotiation=direct",
    { channelBinding: "require", sslNegotiation: "direct" },
  ],
  ["postgres://app@db/ledger?sslrootcert=system", { ca: "system", sslmode: "verify-full" }],
])("%s", (url, want) => {
  expect(addressFromUrl(url)).toMatchObject(want);
});

test("what is not said is left out, so that it has its default", () => {
  expect(addressFromUrl("postgres://app@db:6432/ledger?connect_timeout=0&sslmode=")).toEqual({
    ...full,
    sslmode: "prefer",
  });
});

test.each<[url: string, problem: RegExp]>([
  ["mysql://app@db/ledger", /must look like postgres:/],
  ["postgres://db/ledger", /names no user/],
  ["postgres://app@db:http/ledger", /port "http" is not a number/],
  ["postgres://app@db:70000/ledger", /port "70000"/],
  ["postgres://app@a,b,c/ledger?port=1,2", /2 ports for 3 hosts/],
  ["postgres://app@db/ledger?sslmod=require", /not supported: sslmod \(known: host, .*sslmode/],
  ["postgres://app@db/ledger?sslmode=on", /sslmode "on" is unknown; one of: disable, allow/],
  ["postgres://app@db/ledger?channel_binding=1", /channel_binding "1" is unknown/],
  ["postgres://app@db/ledger?connect_timeout=soon", /connect_timeout "soon" is not a number/],
  ["postgres://app@db/ledger?target_session_attrs=standby", /standby, and a fence needs a primary/],
  ["postgres://app@db/ledger?sslnegotiation=direct", /direct needs sslmode=require or stricter, not prefer/],
  ["postgres://app@db/ledger?sslrootcert=system&sslmode=require", /needs sslmode=verify-full/],
  ["postgres://app@db/ledger?channel_binding=require&sslmode=disable", /needs TLS, and sslmode=disable forbids it/],
  ["postgres://app@/ledger?channel_binding=require&host=/run", /needs TLS, and a Unix socket has none/],
  ["postgres://app@db/ledger?sslrootcert=/nowhere/ca.crt", /sslrootcert cannot be read: .*ENOENT/],
  ["postgres://app:hunter2%@db/ledger", /% that begins no escape: write %25/],
  ["postgres://app:hunter2/x@db/ledger", /write %2F or %3F/],
  ["postgres://app:x@hunter2/y@db/ledger", /write %2F or %3F/],
  ["postgres://app:hunter2?x@db/ledger", /write %2F or %3F/],
  ["postgres://app:1?hunter2=x@db/ledger", /write %2F or %3F/],
  ["postgres://app:x@y?hunter2@db/ledger", /write %2F or %3F/],
])("%s is refused", (url, problem) => {
  const refused = (): unknown => addressFromUrl(url);
  expect(refused).toThrow(problem);
  expect(refused).not.toThrow(/hunter2/);
});

describe("the client's certificate and key", () => {
  const url = (certificate: string | null, key: string | null, more = ""): string => {
    const files = [
      certificate && `sslcert=${certificates.path(certificate)}`,
      key && `sslkey=${certificates.path(key)}`,
    ];
    return `postgres://app@db/ledger?${[...files, more].filter(Boolean).join("&")}`;
  };

  test("are read from their files, an encrypted key with its passphrase", () => {
    const certificate = certificates.pem("client.crt");
    expect(addressFromUrl(url("client.crt", "client.key")).clientCertificate).toEqual({
      certificate,
      key: certificates.pem("client.key"),
    });
    expect(addressFromUrl(url("client.crt", "encrypted.key", "sslpassword=secret%20words")).clientCertificate).toEqual({
      certificate,
      key: certificates.pem("encrypted.key"),
      passphrase: "secret words",
    });
  });

  test.each<[what: string, args: Parameters<typeof url>, problem: RegExp]>([
    ["a certificate alone", ["client.crt", null], /no key for it/],
    ["a key alone", [null, "client.key"], /no client certificate for it/],
    ["a key of another certificate", ["server.crt", "client.key"], /belongs to another key/],
    [
      "an encrypted key without its passphrase",
      ["client.crt", "encrypted.key"],
      /key is encrypted: give .* sslpassword/,
    ],
    ["an encrypted key with a wrong one", ["client.crt", "encrypted.key", "sslpassword=x"], /key cannot be read: /],
    ["a certificate that is none", ["client.key", "client.key"], /certificate cannot be read: /],
    ["a key that is none", ["client.crt", "client.crt"], /key cannot be read: /],
  ])("are refused when they are %s", (_what, args, problem) => {
    expect(() => addressFromUrl(url(...args))).toThrow(problem);
  });
});
