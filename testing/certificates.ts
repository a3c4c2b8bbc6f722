/** For tests: authorities and certificates, made with openssl into a directory that a test server may read. */
import { execFileSync } from "node:child_process";
import { chmodSync, chownSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

export interface Certificates {
  readonly dir: string;
  /** PEM of `<name>.crt` or `<name>.key`. */
  pem(file: string): string;
  path(file: string): string;
  remove(): void;
}

const NOBODY = 65534;
const EC = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"];

/**
 * Two authorities, `ca` and `other`; of the first: `server` and `sha384` (RSA) for localhost, `client` for role
 * by_certificate, its key also as `encrypted.key`. `ed25519` signs itself.
 */
export function makeCertificates(): Certificates {
  const dir = mkdtempSync(join(tmpdir(), "fencedjob-tls-"));
  const openssl = (...args: string[]): void => {
    execFileSync("openssl", args, { cwd: dir, stdio: ["ignore", "pipe", "pipe"] });
  };
  /** Makes `<name>.key`, and of it the request `<name>.csr` or, with -x509, the certificate. */
  const request = (name: string, commonName: string, kind: readonly string[], out: readonly string[]): void =>
    openssl("req", ...kind, "-nodes", "-keyout", `${name}.key`, "-subj", `/CN=${commonName}`, ...out);
  for (const ca of ["ca", "other"]) request(ca, ca, EC, ["-x509", "-out", `${ca}.crt`, "-days", "2"]);
  const issue = (name: string, commonName: string, options: { rsa?: boolean; digest?: string } = {}): void => {
    request(name, commonName, options.rsa ? ["-newkey", "rsa:2048"] : EC, ["-new", "-out", `${name}.csr`]);
    writeFileSync(join(dir, "names"), "subjectAltName=DNS:localhost\n");
    const by = ["-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names"];
    openssl("x509", "-req", "-in", `${name}.csr`, ...by, `-${options.digest ?? "sha256"}`, "-out", `${name}.crt`);
  };
  issue("server", "localhost");
  issue("sha384", "localhost", { rsa: true, digest: "sha384" });
  issue("client", "by_certificate");
  request("ed25519", "x", ["-newkey", "ed25519"], ["-x509", "-out", "ed25519.crt"]);
  openssl("pkcs8", "-topk8", "-in", "client.key", "-out", "encrypted.key", "-passout", "pass:secret words");
  chmodSync(dir, 0o755);
  for (const file of readdirSync(dir)) {
    chmodSync(join(dir, file), 0o600);
    if (process.getuid?.() === 0) chownSync(join(dir, file), NOBODY, NOBODY);
  }
  const path = (file: string): string => join(dir, file);
  return {
    dir,
    path,
    pem: (file) => readFileSync(path(file), "utf8"),
    remove: () => rmSync(dir, { recursive: true, force: true }),
  };
}
