/** Which servers are tried, in which order, and for how long; the attempts themselves are modelled. */
import { describe, expect, test } from "vitest";
import { systemClock } from "../platform/clock.ts";
import { ManualClock } from "../testing/clocks.ts";
import type { DatabaseAddress } from "./database.ts";
import { LoginError, NoServer, toFenceError } from "./errors.ts";
import { inTurn } from "./route.ts";
import { type Route, TlsFailure } from "./socket.ts";

const one: DatabaseAddress = { host: "10.0.0.1", port: 1, database: "d", user: "u", sslmode: "disable" };
const three: DatabaseAddress = {
  ...one,
  furtherHosts: [
    { host: "10.0.0.2", port: 2 },
    { host: "10.0.0.3", port: 3 },
  ],
};
const serverError = (code: string): Error => Object.assign(new Error(`says ${code}`), { code, severity: "FATAL" });
const standby = Object.assign(new Error("a standby"), { code: "LF013" });

/** What was tried, as `<last byte of the address>` with `+tls`; each attempt fails as the table says, else it succeeds. */
async function tried(
  address: DatabaseAddress,
  failures: Record<string, unknown>,
): Promise<{ tries: string[]; error?: unknown }> {
  const tries: string[] = [];
  const attempt = async ({ ip, endpoint, tls }: Route): Promise<void> => {
    const name = `${ip ? ip.split(".").at(-1) : endpoint.host}${tls ? "+tls" : ""}`;
    tries.push(name);
    if (failures[name]) throw failures[name];
  };
  try {
    await inTurn(address, { clock: systemClock, timeoutMs: 60_000, signal: undefined }, attempt);
    return { tries };
  } catch (error) {
    return { tries, error };
  }
}

describe("hosts", () => {
  test.each<[what: string, failure: unknown, goesOn: boolean]>([
    ["cannot be reached", Object.assign(new Error("refused"), { code: "ECONNREFUSED" }), true],
    ["is a standby", standby, true],
    ["is starting", serverError("57P03"), true],
    ["has no TLS to trust", new TlsFailure("no"), true],
    ["refuses the password", serverError("28P01"), false],
    ["has no line in pg_hba.conf", serverError("28000"), false],
    ["refuses the gate", serverError("LF001"), false],
    ["asks for a login that cannot be given", new LoginError("no"), false],
  ])("that %s: the next is tried: %s", async (_what, failure, goesOn) => {
    const { tries, error } = await tried(three, { 1: failure });
    expect(tries).toEqual(goesOn ? ["1", "2"] : ["1"]);
    expect(error).toBe(goesOn ? undefined : failure);
  });

  test("a standby ends the search under target_session_attrs=any", async () => {
    expect(await tried({ ...three, targetSession: "any" }, { 1: standby })).toEqual({ tries: ["1"], error: standby });
  });

  test("each address of a name is tried; an unknown name is an error of its own", async () => {
    const { tries } = await tried(
      { ...one, host: "localhost", furtherHosts: [{ host: "10.0.0.2", port: 2 }] },
      { 1: new Error("no") },
    );
    expect(tries.at(-1)).toBe("2");
    const unknown = await tried({ ...one, host: "no-such-host.invalid" }, {});
    expect(unknown).toMatchObject({ tries: [], error: { code: expect.stringMatching(/ENOTFOUND|EAI_AGAIN/) } });
  });

  test("none can be used: all reasons are told; only standbys is LF013", async () => {
    const { error } = await tried(three, { 1: standby, 2: new Error("refused"), 3: new Error("no route") });
    expect(error).toBeInstanceOf(NoServer);
    const told = toFenceError(error, three, "raising the fence");
    expect(told).toMatchObject({
      code: "LF015",
      detail: "10.0.0.1:1: a standby; 10.0.0.2:2: refused; 10.0.0.3:3: no route.",
    });
    const standbys = await tried(three, { 1: standby, 2: standby, 3: standby });
    expect(toFenceError(standbys.error, three, "x").message).toBe(
      "LF013: none of the servers 10.0.0.1:1, 10.0.0.2:2, 10.0.0.3:3 is a primary",
    );
  });
});

describe("TLS", () => {
  const refused = serverError("28000");
  test.each<[sslmode: DatabaseAddress["sslmode"], failures: Record<string, unknown>, want: string[]]>([
    ["disable", { 1: refused }, ["1"]],
    ["allow", {}, ["1"]],
    ["allow", { 1: refused }, ["1", "1+tls"]],
    ["prefer", {}, ["1+tls"]],
    ["prefer", { "1+tls": refused }, ["1+tls", "1"]],
    ["prefer", { "1+tls": new TlsFailure("handshake") }, ["1+tls", "1"]],
    ["prefer", { "1+tls": serverError("28P01") }, ["1+tls"]],
    ["require", { "1+tls": new TlsFailure("handshake") }, ["1+tls"]],
    ["verify-ca", { "1+tls": refused }, ["1+tls"]],
    ["verify-full", { "1+tls": new TlsFailure("name") }, ["1+tls"]],
  ])("sslmode=%s, %o: %o", async (sslmode, failures, want) => {
    expect((await tried({ ...one, sslmode }, failures)).tries).toEqual(want);
  });

  test("channel_binding=require is never tried without it; a Unix socket never with it", async () => {
    const bound = { ...one, channelBinding: "require" as const };
    for (const sslmode of ["allow", "prefer"] as const) {
      expect((await tried({ ...bound, sslmode }, { "1+tls": refused })).tries).toEqual(["1+tls"]);
    }
    expect((await tried({ ...one, host: "/run", sslmode: "verify-full" }, {})).tries).toEqual(["/run"]);
  });
});

describe("time", () => {
  /** How long each attempt got when none ever answers. */
  async function shares(address: DatabaseAddress, timeoutMs: number): Promise<{ gotMs: number[]; error: unknown }> {
    const clock = new ManualClock();
    const gotMs: number[] = [];
    const hangs = async (_route: Route, signal: AbortSignal): Promise<never> => {
      const startMs = clock.monoMs();
      return await new Promise((_, reject) => {
        signal.addEventListener("abort", () => {
          gotMs.push(clock.monoMs() - startMs);
          reject(signal.reason);
        });
      });
    };
    const running = inTurn(address, { clock, timeoutMs, signal: undefined }, hangs).catch((error: unknown) => error);
    await clock.advance(timeoutMs);
    return { gotMs, error: await running };
  }

  test("hosts that do not answer share the bound; the last has what is left", async () => {
    const { gotMs, error } = await shares(three, 9_000);
    expect(gotMs).toEqual([3_000, 3_000, 3_000]);
    expect(String(error)).toContain("10.0.0.2:2: no answer within 3000 ms");
  });

  test("connect_timeout bounds each", async () => {
    expect((await shares({ ...three, connectTimeoutMs: 2_000 }, 9_000)).gotMs).toEqual([2_000, 2_000, 2_000]);
    expect((await shares({ ...one, connectTimeoutMs: 20_000 }, 9_000)).gotMs).toEqual([9_000]);
  });

  test("whoever asked and gives up gets the own reason at once, and no other host is tried", async () => {
    const asked = new AbortController();
    let tries = 0;
    const hangs = async (_route: Route, signal: AbortSignal): Promise<never> => {
      tries++;
      asked.abort(new Error("gone"));
      signal.throwIfAborted();
      throw new Error("unreachable");
    };
    const running = inTurn(three, { clock: systemClock, timeoutMs: 5_000, signal: asked.signal }, hangs);
    await expect(running).rejects.toThrow("gone");
    expect(tries).toBe(1);
  });
});
