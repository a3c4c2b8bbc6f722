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
  for (const ca of ["ca", "other"]) {
    openssl(
      "req",
      "-x509",
      ...EC,
      "-nodes",
      "-keyout",
      `${ca}.key`,
      "-out",
      `${ca}.crt`,
      "-subj",
      `/CN=${ca}`,
      "-days",
      "2",
    );
  }
  const issue = (name: string, commonName: string, options: { rsa?: boolean; digest?: string } = {}): void => {
    const kind = options.rsa ? ["-newkey", "rsa:2048"] : EC;
    openssl(
      "req",
      "-new",
      ...kind,
      "-nodes",
      "-keyout",
      `${name}.key`,
      "-out",
      `${name}.csr`,
      "-subj",
      `/CN=${commonName}`,
    );
    writeFileSync(join(dir, "names"), "subjectAltName=DNS:localhost\n");
    const by = ["-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names"];
    openssl("x509", "-req", "-in", `${name}.csr`, ...by, `-${options.digest ?? "sha256"}`, "-out", `${name}.crt`);
  };
  issue("server", "localhost");
  issue("sha384", "localhost", { rsa: true, digest: "sha384" });
  issue("client", "by_certificate");
  openssl(
    "req",
    "-x509",
    "-newkey",
    "ed25519",
    "-nodes",
    "-keyout",
    "ed25519.key",
    "-out",
    "ed25519.crt",
    "-subj",
    "/CN=x",
  );
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
