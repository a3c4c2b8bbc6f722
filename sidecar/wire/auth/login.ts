/** Answers to the server's Authentication messages: trust, cleartext, md5, SCRAM-SHA-256 with and without channel binding. */
import { createHash } from "node:crypto";
import { WITH_BINDING } from "../../../fence/binding.ts";
import type { DatabaseAddress } from "../../../fence/database.ts";
import { LoginError } from "../../../fence/errors.ts";
import type { Random } from "../../../platform/random.ts";
import { cstring, FRONT, message } from "../messages.ts";
import { type Binding, MECHANISM, type ScramExchange, startScram } from "./scram.ts";

const OK = 0;
const CLEARTEXT = 3;
const MD5 = 5;
const SASL = 10;
const SASL_CONTINUE = 11;
const SASL_FINAL = 12;

export class Login {
  readonly #address: DatabaseAddress;
  readonly #random: Random;
  readonly #endPoint: Buffer | undefined;
  #scram: ScramExchange | undefined;
  /** The server's proof was seen: with SCRAM an Ok without it is not believed. */
  #proven = true;

  /** `endPoint`: what the login is bound to if the server can; absent without TLS, or when that is not wanted. */
  constructor(address: DatabaseAddress, random: Random, endPoint: Buffer | undefined) {
    this.#address = address;
    this.#random = random;
    this.#endPoint = endPoint;
  }

  /** `body`: of one Authentication message. The reply, "done", or undefined when none is due. Rejects with LoginError. */
  async answer(body: Buffer): Promise<Buffer | "done" | undefined> {
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
        return message(FRONT.password, Buffer.from(await this.#exchange().final(body.toString("utf8", 4))));
      case SASL_FINAL:
        this.#exchange().verify(body.toString("utf8", 4));
        this.#proven = true;
        return undefined;
      default:
        throw new LoginError(`the server asks for a login method that is not supported (${body.readUInt32BE(0)})`);
    }
  }

  #startSasl(mechanisms: readonly string[]): Buffer {
    const binding = this.#binding(mechanisms.includes(WITH_BINDING));
    const mechanism = binding.kind === "bound" ? WITH_BINDING : MECHANISM;
    if (!mechanisms.includes(mechanism)) {
      throw new LoginError(
        `the server offers none but ${mechanisms.filter(Boolean).join(", ")}; ${mechanism} is needed`,
      );
    }
    const nonce = this.#random.bytes(18).toString("base64");
    const scram = startScram({ user: "", password: this.#password(), nonce, binding });
    this.#scram = scram;
    this.#proven = false;
    const first = Buffer.from(scram.first);
    const length = Buffer.alloc(4);
    length.writeInt32BE(first.length, 0);
    return message(FRONT.password, Buffer.concat([cstring(mechanism), length, first]));
  }

  #binding(offered: boolean): Binding {
    const endPoint = this.#endPoint;
    if (!endPoint) return { kind: "none" };
    return offered ? { kind: "bound", endPoint } : { kind: "notOffered" };
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
