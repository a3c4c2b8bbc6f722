/**
 * SCRAM-SHA-256 (RFC 5802, RFC 7677) as a client, for logging in to the server.
 *
 * Verifies the server's proof: a server that does not know the password is not taken for the database.
 */
import { createHash, createHmac, pbkdf2, timingSafeEqual } from "node:crypto";
import { promisify } from "node:util";
import { SCRAM_ITERATIONS_MAX } from "../../../fence/connection.ts";
import { LoginError } from "../../../fence/errors.ts";

export const MECHANISM = "SCRAM-SHA-256";

/** What the client says of channel binding. */
export type Binding =
  /** It cannot. */
  | { readonly kind: "none" }
  /** It could, but the server does not offer it: whoever took the offer away is found out by that. */
  | { readonly kind: "notOffered" }
  /** tls-server-end-point. */
  | { readonly kind: "bound"; readonly endPoint: Buffer };

/** Not on this thread: as many iterations as a server may ask for would stop all other sessions for half a second. */
const derive = promisify(pbkdf2);

export interface ScramExchange {
  /** client-first-message. */
  readonly first: string;
  /** server-first-message → client-final-message. Rejects with LoginError. */
  final(serverFirst: string): Promise<string>;
  /** server-final-message. Throws LoginError when the server's proof is wrong. */
  verify(serverFinal: string): void;
}

/** The beginning of client-first-message; no identity but that of the startup message. */
const HEADERS: Readonly<Record<Binding["kind"], string>> = {
  none: "n,,",
  notOffered: "y,,",
  bound: "p=tls-server-end-point,,",
};

/** `user` is empty with PostgreSQL, which takes it from the startup message; `nonce` is printable without commas. */
export function startScram(options: {
  user: string;
  password: string;
  nonce: string;
  binding: Binding;
}): ScramExchange {
  const header = HEADERS[options.binding.kind];
  const data = options.binding.kind === "bound" ? options.binding.endPoint : Buffer.alloc(0);
  const firstBare = `n=${options.user.replaceAll("=", "=3D").replaceAll(",", "=2C")},r=${options.nonce}`;
  let serverSignature: Buffer | undefined;
  return {
    first: header + firstBare,
    async final(serverFirst) {
      const { nonce, salt, iterations } = readServerFirst(serverFirst, options.nonce);
      const salted = await derive(normalized(options.password), salt, iterations, 32, "sha256");
      const clientKey = hmac(salted, "Client Key");
      const storedKey = createHash("sha256").update(clientKey).digest();
      const withoutProof = `c=${Buffer.concat([Buffer.from(header), data]).toString("base64")},r=${nonce}`;
      const authMessage = `${firstBare},${serverFirst},${withoutProof}`;
      const signature = hmac(storedKey, authMessage);
      const proof = Buffer.from(clientKey.map((byte, i) => byte ^ (signature[i] as number)));
      serverSignature = hmac(hmac(salted, "Server Key"), authMessage);
      return `${withoutProof},p=${proof.toString("base64")}`;
    },
    verify(serverFinal) {
      const fields = attributes(serverFinal);
      const error = fields.get("e");
      if (error !== undefined) throw new LoginError(`the server refuses: ${error}`);
      const given = Buffer.from(fields.get("v") ?? "", "base64");
      if (!serverSignature || given.length !== serverSignature.length || !timingSafeEqual(given, serverSignature)) {
        throw new LoginError("the server does not prove that it knows the password");
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
    throw new LoginError("the server's nonce does not continue ours");
  }
  if (salt.length === 0) throw new LoginError("the server sends no salt");
  // A hostile server must not keep us computing.
  if (!Number.isSafeInteger(iterations) || iterations < 1 || iterations > SCRAM_ITERATIONS_MAX) {
    throw new LoginError(`the server asks for ${fields.get("i")} iterations`);
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
