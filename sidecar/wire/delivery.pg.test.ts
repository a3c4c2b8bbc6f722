/** What must reach a client by itself: it has sent nothing that would bring it along. */
import type pg from "pg";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { type Fenced, startFenced } from "../../testing/fenced.ts";
import { oldestAndNewest } from "../../testing/postgres.ts";
import { type ProxyOfTest, startFencedProxy } from "../../testing/proxy.ts";
import { RawClient } from "../../testing/rawclient.ts";
import { group, run } from "../../testing/requests.ts";
import { bind, describePortal, describeStatement, execute, flush, parse, query, sync } from "./messages.ts";

/** What comes by itself takes a few milliseconds, and what does not never comes; a busy machine may stand still in between. */
const BY_ITSELF_MS = 20_000;

describe.each(oldestAndNewest())("PostgreSQL %i", (version) => {
  let fenced: Fenced;
  let admin: pg.Client;
  let proxied: ProxyOfTest;

  beforeAll(async () => {
    fenced = await startFenced({ version });
    admin = await fenced.connectAdmin();
    await admin.query("CREATE TABLE w (i int); GRANT ALL ON w TO invoice_app");
    proxied = await startFencedProxy(fenced, 1);
  });
  afterAll(async () => {
    await proxied.stop();
    await fenced.stop();
  });

  /** What has come by then, by its letters. */
  async function comes(client: RawClient, letters: string): Promise<string> {
    const from = client.transcript.length;
    const seen = (): string =>
      client.transcript
        .slice(from)
        .map((line) => line[0])
        .join("");
    const late = setTimeout(() => client.socket.destroy(), BY_ITSELF_MS);
    await client.until(() => seen().length >= letters.length);
    clearTimeout(late);
    return seen();
  }

  test.each([
    ["outside of a block", []],
    ["in a block", [query("BEGIN")]],
  ])("the answers in front of a Flush, %s", async (_where, before) => {
    for (const [sql, answers] of [
      ["SELECT 1 AS one", "2TDC"],
      ["INSERT INTO w VALUES (1) RETURNING i", "2TDC"],
    ] as const) {
      const client = await RawClient.open({ port: proxied.port });
      for (const message of before) await client.exchange(1, message);
      client.send(parse("s", sql), describeStatement("s"), flush());
      expect(await comes(client, "1tT")).toBe("1tT");
      client.send(bind("", "s"), describePortal(""), execute(""), flush());
      expect(await comes(client, answers)).toBe(answers);
      client.send(...run("SELECT nosuch"), flush());
      expect(await comes(client, "E")).toBe("E");
      expect((await client.exchange(1, sync())).length).toBe(1);
      await client.end();
    }
  });

  test("B10: a notification, to a client that says nothing", async () => {
    const listener = await RawClient.open({ port: proxied.port });
    await listener.exchange(1, query("LISTEN ch"));
    const sender = await proxied.connect();
    for (const payload of ["one", "two"]) {
      const coming = comes(listener, "A");
      await sender.query("SELECT pg_notify('ch', $1)", [payload]);
      expect(await coming).toBe("A");
    }
    await listener.end();
  });

  test("B10: LISTEN inside of a pipeline, and what was sent to it meanwhile", async () => {
    const listener = await RawClient.open({ port: proxied.port });
    const answers = await listener.exchange(
      4,
      ...group("SELECT 1"),
      ...group("LISTEN ch"),
      ...group("INSERT INTO w VALUES (1)", "NOTIFY ch, 'own'"),
      ...group("SELECT 2"),
    );
    expect(answers.filter((line) => /^[CE]/.test(line))).toEqual([
      "C SELECT 1·",
      "C LISTEN·",
      "C INSERT 0 1·",
      "C NOTIFY·",
      "C SELECT 1·",
    ]);
    expect(answers.filter((line) => line.startsWith("A")).length).toBe(1);
    await listener.end();
  });

  test("a notice, while its statement goes on", async () => {
    const client = await RawClient.open({ port: proxied.port });
    const sql = "DO $$ BEGIN RAISE NOTICE 'begun'; PERFORM pg_sleep(60); END $$";
    for (const request of [[query("BEGIN")], [query(sql)]]) client.send(...request);
    // The BEGIN's tag and ReadyForQuery come first.
    expect(await comes(client, "CZN")).toBe("CZN");
    client.socket.destroy();
  });
});
