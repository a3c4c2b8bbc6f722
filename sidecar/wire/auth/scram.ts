/**
 * SCRAM-SHA-256 (RFC 5802, RFC 7677) as a client, for logging in to the server.
 *
 * Verifies the server's proof: a server that does not know the password is not taken for the database.
 */
import { createHash, createHmac, pbkdf2Sync, timingSafeEqual } from "node:crypto";

export const MECHANISM = "SCRAM-SHA-256";
/** A hostile server must not keep us computing: PostgreSQL's default is 4096. */
const ITERATIONS_MAX = 1_000_000;

export class ScramError extends Error {
  override name = "ScramError";
}

/** No channel binding, and no identity but that of the startup message. */
const GS2_HEADER = "n,,";

export interface ScramExchange {
  /** client-first-message. */
  readonly first: string;
  /** server-first-message → client-final-message. Throws ScramError. */
  final(serverFirst: string): string;
  /** server-final-message. Throws ScramError when the server's proof is wrong. */
  verify(serverFinal: string): void;
}

/** `user` is empty with PostgreSQL, which takes it from the startup message; `nonce` is printable without commas. */
export function startScram(options: { user: string; password: string; nonce: string }): ScramExchange {
  const firstBare = `n=${options.user.replaceAll("=", "=3D").replaceAll(",", "=2C")},r=${options.nonce}`;
  let serverSignature: Buffer | undefined;
  return {
    first: GS2_HEADER + firstBare,
    final(serverFirst) {
      const { nonce, salt, iterations } = readServerFirst(serverFirst, options.nonce);
      const salted = pbkdf2Sync(normalized(options.password), salt, iterations, 32, "sha256");
      const clientKey = hmac(salted, "Client Key");
      const storedKey = createHash("sha256").update(clientKey).digest();
      const withoutProof = `c=${Buffer.from(GS2_HEADER).toString("base64")},r=${nonce}`;
      const authMessage = `${firstBare},${serverFirst},${withoutProof}`;
      const signature = hmac(storedKey, authMessage);
      const proof = Buffer.from(clientKey.map((byte, i) => byte ^ (signature[i] as number)));
      serverSignature = hmac(hmac(salted, "Server Key"), authMessage);
      return `${withoutProof},p=${proof.toString("base64")}`;
    },
    verify(serverFinal) {
      const fields = attributes(serverFinal);
      const error = fields.get("e");
      if (error !== undefined) throw new ScramError(`the server refuses: ${error}`);
      const given = Buffer.from(fields.get("v") ?? "", "base64");
      if (!serverSignature || given.length !== serverSignature.length || !timingSafeEqual(given, serverSignature)) {
        throw new ScramError("the server does not prove that it knows the password");
      }
    },
  };
}

function readServerFirst(text: string, clientNonce: string): { nonce: string; salt: Buffer; iterations: number } {
  const fields = attributes(text);
  const nonce = fields.get("r") ?? "";
  const salt = Buffer.from(fields.get("s") ?? "", "base64");
  const iterations = Number(fields.get("i"));
  if (!nonce.startsWith(clientNonce) || nonce.length === clientNonce.length) {
    throw new ScramError("the server's nonce does not continue ours");
  }
  if (salt.length === 0) throw new ScramError("the server sends no salt");
  if (!Number.isSafeInteger(iterations) || iterations < 1 || iterations > ITERATIONS_MAX) {
    throw new ScramError(`the server asks for ${fields.get("i")} iterations`);
  }
  return { nonce, salt, iterations };
}

function attributes(text: string): Map<string, string> {
  return new Map(text.split(",").map((part) => [part.slice(0, 1), part.slice(2)]));
}

const hmac = (key: Buffer, text: string): Buffer => createHmac("sha256", key).update(text).digest();

/** SASLprep for what matters in practice: odd spaces become spaces, then NFKC. ASCII stays as it is. */
function normalized(password: string): string {
  return password.replace(/[\u00a0\u1680\u2000-\u200b\u202f\u205f\u3000]/g, " ").normalize("NFKC");
}
