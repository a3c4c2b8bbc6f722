/**
 * Channel binding of type tls-server-end-point (RFC 5929): the login is tied to the certificate that this TLS connection
 * showed, so that nobody who stands in between can pass it on.
 */
import { createHash, X509Certificate } from "node:crypto";
import type { Socket } from "node:net";
import { TLSSocket } from "node:tls";
import { LoginError } from "./errors.ts";

export const WITH_BINDING = "SCRAM-SHA-256-PLUS";

/** Hash of a certificate's signature → the hash of the binding, which is never weaker than SHA-256. */
const HASH_BY_OID: Readonly<Record<string, string>> = {
  "1.2.840.113549.1.1.4": "sha256", // MD5 with RSA
  "1.2.840.113549.1.1.5": "sha256", // SHA-1 with RSA
  "1.2.840.113549.1.1.11": "sha256",
  "1.2.840.113549.1.1.12": "sha384",
  "1.2.840.113549.1.1.13": "sha512",
  "1.2.840.113549.1.1.14": "sha224",
  "1.2.840.10045.4.1": "sha256", // SHA-1 with ECDSA
  "1.2.840.10045.4.3.1": "sha224",
  "1.2.840.10045.4.3.2": "sha256",
  "1.2.840.10045.4.3.3": "sha384",
  "1.2.840.10045.4.3.4": "sha512",
};

/** What a login over this socket can be bound to. Absent: no TLS, or a certificate (EdDSA, RSASSA-PSS) that names no hash. */
export function serverEndPoint(socket: Socket): Buffer | undefined {
  // Not getPeerX509Certificate(): after it, getPeerCertificate() gives nothing any more, and node-postgres needs that.
  const raw = socket instanceof TLSSocket ? socket.getPeerCertificate().raw : undefined;
  return raw && certificateHash(new X509Certificate(raw));
}

export function certificateHash(certificate: X509Certificate): Buffer | undefined {
  const hash = HASH_BY_OID[certificate.signatureAlgorithmOid];
  return hash === undefined ? undefined : createHash(hash).update(certificate.raw).digest();
}

// ---- channel_binding=require ----

const OK = 0;
const SASL = 10;
const SASL_CONTINUE = 11;
const SASL_FINAL = 12;

/** Looks at the server's Authentication messages before they are answered: nothing but a bound login is let through. */
export class RequiredBinding {
  #offered = false;
  #proven = false;

  /** `endPoint`: of `serverEndPoint`. Throws LoginError. */
  constructor(endPoint: Buffer | undefined) {
    if (!endPoint) {
      throw new LoginError(
        "channel_binding=require, and there is nothing to bind to: no TLS, or the server's certificate is signed with a method that names no hash",
      );
    }
  }

  /** `body`: of one Authentication message. Throws LoginError. */
  see(body: Buffer): void {
    const kind = body.readUInt32BE(0);
    if (kind === SASL) {
      this.#offered = body.toString("latin1", 4).split("\0").includes(WITH_BINDING);
      if (this.#offered) return;
      throw new LoginError(
        `channel_binding=require, and the server offers no ${WITH_BINDING}: something in between ends the TLS connection (a pooler, a proxy), or it does not support it`,
      );
    }
    if (kind === SASL_CONTINUE && this.#offered) return;
    if (kind === SASL_FINAL && this.#offered) {
      this.#proven = true;
      return;
    }
    if (kind === OK && this.#proven) return;
    throw new LoginError(
      kind === OK
        ? "channel_binding=require, and the server demanded no login that could be bound (trust, or a certificate)"
        : "channel_binding=require, and the server asks for a password in a way that cannot be bound",
    );
  }
}
