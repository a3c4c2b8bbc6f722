/** Throw-away certificates for one cluster, made with the openssl command. Does NOT protect anything: the keys lie in a directory. */
import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { run } from "./command.ts";

export interface Identity {
  /** Name of the files: `<file>.crt`, `<file>.key`. */
  readonly file: string;
  readonly commonName: string;
  /** Kubernetes reads it as the group. */
  readonly organization?: string;
  /** `DNS:name` or `IP:address`; with it the certificate may serve. */
  readonly subjectAltNames?: readonly string[];
}

const DAYS = "3650";
const newKey = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];

/** Makes the CA `ca.crt`, the service account keys `sa.key` and `sa.pub`, and a certificate for each identity, unless there. */
export async function issue(dir: string, identities: readonly Identity[]): Promise<void> {
  mkdirSync(dir, { recursive: true, mode: 0o700 });
  const at = (file: string): string => join(dir, file);
  if (!existsSync(at("ca.crt"))) {
    await run([
      "openssl",
      "req",
      "-x509",
      ...newKey,
      "-days",
      DAYS,
      "-subj",
      "/CN=fencedjob-test-ca",
      "-keyout",
      at("ca.key"),
      "-out",
      at("ca.crt"),
    ]);
  }
  if (!existsSync(at("sa.pub"))) {
    await run(["openssl", "genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", at("sa.key")]);
    await run(["openssl", "pkey", "-in", at("sa.key"), "-pubout", "-out", at("sa.pub")]);
  }
  await Promise.all(
    identities
      .filter(({ file }) => !existsSync(at(`${file}.crt`)))
      .map((identity) =>
        run([
          "openssl",
          "req",
          "-x509",
          ...newKey,
          "-days",
          DAYS,
          "-CA",
          at("ca.crt"),
          "-CAkey",
          at("ca.key"),
          "-subj",
          subject(identity),
          ...extensions(identity),
          "-keyout",
          at(`${identity.file}.key`),
          "-out",
          at(`${identity.file}.crt`),
        ]),
      ),
  );
}

/** A kubeconfig that carries its certificates, so that it works wherever it is copied. */
export function writeKubeconfig(path: string, dir: string, file: string, server: string): void {
  const data = (name: string): string => readFileSync(join(dir, name)).toString("base64");
  const config = {
    apiVersion: "v1",
    kind: "Config",
    "current-context": "fencedjob",
    clusters: [{ name: "fencedjob", cluster: { server, "certificate-authority-data": data("ca.crt") } }],
    users: [
      { name: file, user: { "client-certificate-data": data(`${file}.crt`), "client-key-data": data(`${file}.key`) } },
    ],
    contexts: [{ name: "fencedjob", context: { cluster: "fencedjob", user: file } }],
  };
  writeFileSync(path, `${JSON.stringify(config, null, 2)}\n`, { mode: 0o600 });
}

function subject({ commonName, organization }: Identity): string {
  return `${organization === undefined ? "" : `/O=${organization}`}/CN=${commonName}`;
}

function extensions({ subjectAltNames }: Identity): readonly string[] {
  const usage = subjectAltNames ? "serverAuth,clientAuth" : "clientAuth";
  return [
    ...["-addext", "basicConstraints=critical,CA:FALSE", "-addext", `extendedKeyUsage=${usage}`],
    ...(subjectAltNames ? ["-addext", `subjectAltName=${subjectAltNames.join(",")}`] : []),
  ];
}
