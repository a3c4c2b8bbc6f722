import { describe, expect, test } from "vitest";
import { LoginError } from "../../../fence/errors.ts";
import { systemRandom } from "../../../platform/random.ts";
import { message } from "../messages.ts";
import { Login } from "./login.ts";
import { startScram } from "./scram.ts";

/** The exchange of RFC 7677, section 3. */
const RFC = {
  user: "user",
  password: "pencil",
  nonce: "rOprNGfwEbeRWgbNEkqO",
  binding: { kind: "none" },
  first: "n,,n=user,r=rOprNGfwEbeRWgbNEkqO",
  serverFirst: "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
  final: "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
  serverFinal: "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
} as const;

describe("SCRAM-SHA-256", () => {
  test("gives the messages of RFC 7677 and accepts the server's proof", async () => {
    const scram = startScram(RFC);
    expect(scram.first).toBe(RFC.first);
    expect(await scram.final(RFC.serverFirst)).toBe(RFC.final);
    scram.verify(RFC.serverFinal);
  });

  test.each([
    ["a wrong proof", "v=AAriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="],
    ["no proof", "v="],
    ["an error", "e=invalid-proof"],
  ])("does not accept %s", async (_what, serverFinal) => {
    const scram = startScram(RFC);
    await scram.final(RFC.serverFirst);
    expect(() => scram.verify(serverFinal)).toThrow(LoginError);
  });

  test.each([
    ["a nonce that is not a continuation of ours", "r=other,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"],
    ["our nonce alone", "r=rOprNGfwEbeRWgbNEkqO,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"],
    ["no salt", "r=rOprNGfwEbeRWgbNEkqOx,i=4096"],
    ["a number of iterations without bound", "r=rOprNGfwEbeRWgbNEkqOx,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=999999999"],
  ])("refuses a server that sends %s", async (_what, serverFirst) => {
    await expect(startScram(RFC).final(serverFirst)).rejects.toThrow(LoginError);
  });

  test("a server that asks for many iterations does not stop the other sessions meanwhile", async () => {
    const order: string[] = [];
    const answered = startScram(RFC)
      .final("r=rOprNGfwEbeRWgbNEkqOx,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=100000")
      .then(() => order.push("answered"));
    await new Promise((resolve) => setImmediate(resolve));
    order.push("others");
    await answered;
    expect(order).toEqual(["others", "answered"]);
  });

  test("an Ok of a server that has not proved to know the password is not believed", async () => {
    const address = { host: "h", port: 1, database: "d", user: "u", password: "p", sslmode: "disable" } as const;
    const login = new Login(address, systemRandom, undefined);
    const sasl = message(0x52, Buffer.concat([Buffer.from([0, 0, 0, 10]), Buffer.from("SCRAM-SHA-256\0\0")]));
    await login.answer(sasl.subarray(5));
    await expect(login.answer(Buffer.alloc(4))).rejects.toThrow(/without proving/);
  });
});
