/** What node-postgres and libpq do beyond queries: cancel, notifications, big values, slow readers, startup settings. */

import { connect } from "node:net";
import type pg from "pg";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { type Fenced, failure, startFenced, told, until } from "../../testing/fenced.ts";
import { oldestAndNewest } from "../../testing/postgres.ts";
import { type ProxyOfTest, serveNewJob, startFencedProxy } from "../../testing/proxy.ts";
import { RawClient } from "../../testing/rawclient.ts";
import { cancelRequest } from "./cancel.ts";
import { bind, cstring, execute, FRONT, message, parse, query, sync } from "./messages.ts";

const MIB = 1024 * 1024;

async function sendRaw(port: number, bytes: Buffer): Promise<void> {
  const socket = connect(port, "127.0.0.1");
  await new Promise<void>((resolve) => {
    socket.once("close", () => resolve());
    socket.resume();
    socket.end(bytes);
  });
}

describe.each(oldestAndNewest())("PostgreSQL %i", (version) => {
  let fenced: Fenced;
  let admin: pg.Client;
  let proxied: ProxyOfTest;

  beforeAll(async () => {
    fenced = await startFenced({ version });
    admin = await fenced.connectAdmin();
    await admin.query("GRANT CREATE ON SCHEMA public TO invoice_app");
    proxied = await startFencedProxy(fenced, 1);
  });
  afterAll(async () => {
    await proxied.stop();
    await fenced.stop();
  });

  test.each([
    [0, 4],
    [2, 32],
  ])(
    "protocol 3.%i: a cancel with the proxy's key of %i bytes ends the query, a wrong or late one does nothing",
    async (minor, keyBytes) => {
      const client = await RawClient.open({ port: proxied.port, minor });
      expect(client.key.length).toBe(4 + keyBytes);
      const pid = client.key.readInt32BE(0);
      const key = Buffer.from(client.key.subarray(4));
      const sleeping = client.exchange(1, query("SELECT pg_sleep(30)"));
      await until(admin, "SELECT count(*) > 0 FROM pg_stat_activity WHERE pid = $1 AND wait_event = 'PgSleep'", [pid]);
      await sendRaw(proxied.port, cancelRequest(pid, Buffer.alloc(keyBytes, 1)));
      await sendRaw(proxied.port, cancelRequest(pid, key));
      expect((await sleeping).at(-2)).toMatch(/^E S=ERROR C=57014 /);
      await sendRaw(proxied.port, cancelRequest(pid, key));
      for (let i = 0; i < 50; i++) expect((await client.exchange(1, query("SELECT 1"))).at(-2)).toBe("C SELECT 1·");
      await client.end();
    },
  );

  test("a cancel right behind a query never hits the next one", async () => {
    const client = await RawClient.open({ port: proxied.port });
    const pid = client.key.readInt32BE(0);
    const key = Buffer.from(client.key.subarray(4));
    for (let i = 0; i < 30; i++) {
      const first = client.exchange(1, query("SELECT pg_sleep(0.002)"));
      const cancelled = sendRaw(proxied.port, cancelRequest(pid, key));
      await first;
      expect((await client.exchange(1, query("SELECT pg_sleep(0.002)"))).at(-2)).toBe("C SELECT 1·");
      await cancelled;
    }
    await client.end();
  });

  test("notifications arrive while the client is silent, with the sender's own pid", async () => {
    const listener = await proxied.connect();
    await listener.query("LISTEN ch");
    const heard = new Promise<pg.Notification>((resolve) => listener.once("notification", resolve));
    const sender = await proxied.connect();
    const pid = (await sender.query("SELECT pg_backend_pid() AS pid")).rows[0].pid;
    await sender.query("SELECT pg_notify('ch', $1)", ["hello"]);
    expect(await heard).toMatchObject({ channel: "ch", payload: "hello", processId: pid });
  });

  test("startup settings reach the server and survive RESET ALL; the read-only default is not the client's business", async () => {
    const client = await proxied.connect({
      application_name: "invoices",
      options: "-c search_path=s1 -c lock_timeout=2s -c default_transaction_read_only=off",
    });
    for (const reset of [false, true]) {
      if (reset) await client.query("RESET ALL");
      const show = async (name: string): Promise<string> => (await client.query(`SHOW ${name}`)).rows[0][name];
      expect([await show("application_name"), await show("search_path"), await show("lock_timeout")]).toEqual([
        "invoices",
        "s1",
        "2s",
      ]);
      expect(await show("default_transaction_read_only")).toBe("on");
    }
    const raw = await RawClient.open({ port: proxied.port, parameters: { default_transaction_read_only: "off" } });
    expect(raw.transcript.filter((line) => line.includes("default_transaction_read_only"))).toEqual([
      "S default_transaction_read_only·off·",
    ]);
    await raw.end();
  });

  test("a newer protocol and unknown extensions are negotiated down", async () => {
    const client = await RawClient.open({
      port: proxied.port,
      minor: 9999,
      parameters: { "_pq_.test_protocol_negotiation": "" },
    });
    expect(client.transcript[0]).toMatch(/^v .*_pq_\.test_protocol_negotiation·$/);
    expect((await client.exchange(1, query("SELECT 1"))).at(-1)).toBe("Z I");
    await client.end();
  });

  test("a replication connection is refused before it starts", async () => {
    const client = await RawClient.open({ port: proxied.port, parameters: { replication: "database" } });
    expect(client.transcript[0]).toMatch(/^E S=FATAL C=LF020 /);
  });

  test("B22: parameters of 20 MiB and more go through, both ways, byte for byte", async () => {
    const client = await proxied.connect();
    await client.query("CREATE TEMP TABLE big (b bytea)");
    const value = Buffer.alloc(20 * MIB, "0123456789");
    await client.query("INSERT INTO big VALUES ($1)", [value]);
    const { rows } = await client.query("SELECT b, md5(b) AS sum FROM big");
    expect(rows[0].b.equals(value)).toBe(true);
    const text = "x".repeat(8 * MIB);
    expect((await client.query(`SELECT length('${text}') AS n`)).rows[0].n).toBe(8 * MIB);
    const error = await failure(client.query(`SELECT length('${text}${text}') AS n`));
    expect(error).toMatchObject({ code: "LF020", severity: "ERROR" });
    expect((await client.query("SELECT 1 AS one")).rows).toEqual([{ one: 1 }]);
  });

  test("B22: a result of 256 MiB for a client that does not read waits in the server, not in our memory", async () => {
    const client = await RawClient.open({ port: proxied.port });
    client.socket.pause();
    client.send(query("SELECT repeat('x', 1048576) FROM generate_series(1, 256)"));
    await until(admin, "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'ClientWrite'");
    const before = process.memoryUsage.rss();
    let received = 0;
    client.socket.removeAllListeners("data");
    client.socket.on("data", (chunk: Buffer) => {
      received += chunk.length;
      // A slow reader: some turns of the loop between two chunks.
      client.socket.pause();
      setImmediate(() => client.socket.resume());
    });
    client.socket.resume();
    await until(
      admin,
      "SELECT count(*) = 0 FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%generate_series(1, 256)' AND usename = 'invoice_app'",
    );
    expect(received).toBeGreaterThan(200 * MIB);
    // The result is four times what this process may grow by, with the server's reading side of the test in it.
    expect(process.memoryUsage.rss() - before).toBeLessThan(64 * MIB);
    client.socket.destroy();
  });

  test("a group of 20,000 statements before one Sync, and 2,000 groups in a row, keep their order", async () => {
    const client = await RawClient.open({ port: proxied.port });
    const one = Buffer.concat([bind("", "s"), execute("")]);
    await client.exchange(1, query("CREATE TEMP TABLE n (i serial)"));
    await client.exchange(1, parse("s", "INSERT INTO n DEFAULT VALUES RETURNING i"), sync());
    const answers = await client.exchange(1, ...Array<Buffer>(20_000).fill(one), sync());
    expect(answers.filter((line) => line.startsWith("D")).length).toBe(20_000);
    const grouped = await client.exchange(2_000, ...Array<Buffer>(2_000).fill(Buffer.concat([one, sync()])));
    expect(grouped.length).toBe(4 * 2_000);
    await client.end();
  });

  test("a simple query in front of a group's Sync is refused outside of a block", async () => {
    const client = await RawClient.open({ port: proxied.port });
    client.send(parse("", "SELECT 1"), bind("", ""), execute(""), query("SELECT 2"));
    await client.until(() => client.closed);
    expect(client.transcript.at(-1)).toMatch(/^E S=FATAL C=LF020 /);
  });

  test("FunctionCall goes through inside a block, and is refused outside with the reason", async () => {
    const client = await RawClient.open({ port: proxied.port });
    const oid = (await admin.query("SELECT 'pg_backend_pid'::regproc::oid::int AS oid")).rows[0].oid;
    const body = Buffer.alloc(10);
    body.writeInt32BE(oid, 0);
    const call = message(FRONT.functionCall, body);
    expect((await client.exchange(1, call))[0]).toMatch(/^E S=ERROR C=LF020 /);
    await client.exchange(1, query("BEGIN"));
    const [first, ...rest] = await client.exchange(1, call);
    expect(first).toMatch(/^V /);
    expect(rest).toEqual(["Z T"]);
    expect((await client.exchange(1, query("COMMIT"))).at(-1)).toBe("Z I");
    await client.end();
  });

  test.each([
    ["an unknown message", message(0x21, Buffer.alloc(0))],
    ["an endless name", message(FRONT.bind, cstring("x".repeat(100_000)))],
    ["a message without length", Buffer.from([0x51, 0, 0, 0, 1])],
  ])("%s ends the connection with 08P01 and nothing else", async (_what, bytes) => {
    const client = await RawClient.open({ port: proxied.port });
    client.send(bytes);
    await client.until(() => client.closed);
    expect(client.transcript.at(-1)).toMatch(/^E S=FATAL C=08P01 /);
    expect((await (await proxied.connect()).query("SELECT 1 AS one")).rows).toEqual([{ one: 1 }]);
  });

  test("sessions end on both sides when the client leaves, also in the middle of a COPY", async () => {
    const client = await RawClient.open({ port: proxied.port });
    const pid = client.key.readInt32BE(0);
    await client.exchange(1, query("CREATE TEMP TABLE c (x text)"));
    client.send(query("COPY c FROM STDIN"), message(FRONT.copyData, Buffer.alloc(2 * MIB, "a")));
    await client.until(() => client.transcript.at(-1)?.startsWith("G") === true);
    client.socket.destroy();
    await until(admin, "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $1", [pid]);
  });

  test("a proxy that closes tells its clients and takes no more", async () => {
    const { proxy } = await serveNewJob(fenced);
    const client = await proxy.connect();
    const ended = told(client);
    await proxy.proxy.close();
    expect(await ended).toMatchObject({ code: "57P01", severity: "FATAL" });
    expect((await failure(proxy.connect())).code).toBe("ECONNREFUSED");
    expect(proxy.proxy.counters.read().sessionsOpen).toBe(0);
  });
});
