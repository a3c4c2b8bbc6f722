/** Answers to the server's Authentication messages: trust, cleartext, md5, SCRAM-SHA-256. */
import { createHash } from "node:crypto";
import type { DatabaseAddress } from "../../../fence/database.ts";
import type { Random } from "../../../platform/random.ts";
import { cstring, FRONT, message } from "../messages.ts";
import { MECHANISM, type ScramExchange, startScram } from "./scram.ts";

const OK = 0;
const CLEARTEXT = 3;
const MD5 = 5;
const SASL = 10;
const SASL_CONTINUE = 11;
const SASL_FINAL = 12;

/** The server asks for what cannot be given; the message is for the person who wrote the Secret. */
export class LoginError extends Error {
  override name = "LoginError";
}

export class Login {
  readonly #address: DatabaseAddress;
  readonly #random: Random;
  #scram: ScramExchange | undefined;
  /** The server's proof was seen: with SCRAM an Ok without it is not believed. */
  #proven = true;

  constructor(address: DatabaseAddress, random: Random) {
    this.#address = address;
    this.#random = random;
  }

  /** `body`: of one Authentication message. Returns the reply, "done", or undefined when none is due. */
  answer(body: Buffer): Buffer | "done" | undefined {
    switch (body.readUInt32BE(0)) {
      case OK:
        if (!this.#proven)
          throw new LoginError("the server ended the login without proving that it knows the password");
        return "done";
      case CLEARTEXT:
        return message(FRONT.password, cstring(this.#password()));
      case MD5:
        return message(FRONT.password, cstring(md5Answer(this.#address.user, this.#password(), body.subarray(4, 8))));
      case SASL:
        return this.#startSasl(body.toString("latin1", 4).split("\0"));
      case SASL_CONTINUE:
        return message(FRONT.password, Buffer.from(this.#exchange().final(body.toString("utf8", 4))));
      case SASL_FINAL:
        this.#exchange().verify(body.toString("utf8", 4));
        this.#proven = true;
        return undefined;
      default:
        throw new LoginError(`the server asks for a login method that is not supported (${body.readUInt32BE(0)})`);
    }
  }

  #startSasl(mechanisms: readonly string[]): Buffer {
    if (!mechanisms.includes(MECHANISM)) {
      throw new LoginError(
        `the server offers none but ${mechanisms.filter(Boolean).join(", ")}; ${MECHANISM} is needed`,
      );
    }
    const nonce = this.#random.bytes(18).toString("base64");
    const scram = startScram({ user: "", password: this.#password(), nonce });
    this.#scram = scram;
    this.#proven = false;
    const first = Buffer.from(scram.first);
    const length = Buffer.alloc(4);
    length.writeInt32BE(first.length, 0);
    return message(FRONT.password, Buffer.concat([cstring(MECHANISM), length, first]));
  }

  #exchange(): ScramExchange {
    if (!this.#scram) throw new LoginError("the server answers a login that was not begun");
    return this.#scram;
  }

  #password(): string {
    if (this.#address.password === undefined) throw new LoginError("the server asks for a password, and none is given");
    return this.#address.password;
  }
}

export function md5Answer(user: string, password: string, salt: Buffer): string {
  const inner = createHash("md5").update(password).update(user).digest("hex");
  return `md5${createHash("md5").update(inner).update(salt).digest("hex")}`;
}
