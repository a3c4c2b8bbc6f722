import { describe, expect, test } from "vitest";
import { ProtocolError } from "./framer.ts";
import { planStartup, readFirst, type Startup } from "./startup.ts";

function packet(code: number, rest: Buffer = Buffer.alloc(0)): Buffer {
  const bytes = Buffer.alloc(8 + rest.length);
  bytes.writeUInt32BE(bytes.length, 0);
  bytes.writeUInt32BE(code, 4);
  rest.copy(bytes, 8);
  return bytes;
}

const startup = (minor: number, ...parameters: [string, string][]): Startup => ({ minor, parameters });

/** Parameters of the startup message for the server, in order. */
function sent(plan: { toServer: Buffer }): string[] {
  return plan.toServer.toString("utf8", 8, plan.toServer.length - 2).split("\0");
}

describe("the first message of a client", () => {
  test("is read from any number of pieces", () => {
    const bytes = packet(3 << 16, Buffer.from("user\0u\0database\0d\0\0"));
    for (let n = 0; n < bytes.length; n++) expect(readFirst(bytes.subarray(0, n))).toBeUndefined();
    expect(readFirst(bytes)).toEqual({
      kind: "startup",
      bytes: bytes.length,
      startup: startup(0, ["user", "u"], ["database", "d"]),
    });
  });

  test("asks for TLS or GSS encryption, or cancels with a key of 4 or of 32 bytes", () => {
    expect(readFirst(packet(80877103))?.kind).toBe("ssl");
    expect(readFirst(packet(80877104))?.kind).toBe("gss");
    for (const length of [4, 32]) {
      const key = Buffer.alloc(length, 7);
      const first = readFirst(packet(80877102, Buffer.concat([Buffer.from([0, 0, 1, 2]), key])));
      expect(first).toMatchObject({ kind: "cancel", pid: 258, key });
    }
  });

  test.each([
    ["a length without bound", Buffer.from([0x7f, 0xff, 0xff, 0xff, 0, 3, 0, 0])],
    ["protocol 2", packet(2 << 16)],
    ["TLS without a request for it", Buffer.from([0x16, 3, 1])],
    ["parameters without an end", packet(3 << 16, Buffer.from("user\0u\0"))],
    ["bytes behind the end", packet(3 << 16, Buffer.from("user\0u\0\0\0"))],
    ["a value without an end", packet(3 << 16, Buffer.from("user\0u"))],
    ["an endless cancel key", packet(80877102, Buffer.alloc(1000))],
  ])("is refused when it is %s", (_what, bytes) => expect(() => readFirst(bytes)).toThrow(ProtocolError));
});

describe("the startup message for the server", () => {
  test("keeps the client's settings, replaces who it is, and ends with the read-only default", () => {
    const plan = planStartup(
      startup(
        0,
        ["user", "x"],
        ["database", "d"],
        ["application_name", "app"],
        ["options", "-c default_transaction_read_only=off"],
      ),
      "real",
      "d",
    );
    expect(sent(plan)).toEqual([
      "user",
      "real",
      "database",
      "d",
      "application_name",
      "app",
      "options",
      "-c default_transaction_read_only=off",
      "default_transaction_read_only",
      "on",
    ]);
  });

  test.each(["default_transaction_read_only", "DEFAULT_TRANSACTION_READ_ONLY", "transaction_read_only", "replication"])(
    "drops %s of the client",
    (name) => {
      const plan = planStartup(startup(0, ["user", "x"], [name, "off"]), "real", "d");
      expect(sent(plan)).toEqual(["user", "real", "database", "d", "default_transaction_read_only", "on"]);
    },
  );

  test("keeps the wish of a client for read-only transactions", () => {
    expect(planStartup(startup(0, ["default_transaction_read_only", "on"]), "u", "d").readOnlyDefault).toBe(true);
    expect(planStartup(startup(0, ["options", "-c default_transaction_read_only=on"]), "u", "d").readOnlyDefault).toBe(
      true,
    );
    expect(planStartup(startup(0), "u", "d").readOnlyDefault).toBe(false);
  });

  test("negotiates protocol 3.2 down from anything newer, and names extensions it does not know", () => {
    expect(planStartup(startup(2), "u", "d").negotiate).toBeUndefined();
    const newer = planStartup(startup(9999, ["_pq_.greased", "1"]), "u", "d").negotiate;
    expect(newer?.readUInt32BE(5)).toBe((3 << 16) | 2);
    expect(newer?.toString("latin1", 13)).toBe("_pq_.greased\0");
    expect(planStartup(startup(2), "u", "d").keyBytes).toBe(32);
    expect(planStartup(startup(0), "u", "d").keyBytes).toBe(4);
  });
});
