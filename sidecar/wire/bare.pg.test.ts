/**
 * Reads that go without the fence, against real servers: the client sees what it sees directly, whatever a view or an operator
 * calls, and every row that gets written is written inside the gate (INV-3).
 */
import { connect } from "node:net";
import type pg from "pg";
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { type Fenced, failure, startFenced, told, until } from "../../testing/fenced.ts";
import { judgedTableSql } from "../../testing/judge.ts";
import { oldestAndNewest } from "../../testing/postgres.ts";
import { type ProxyOfTest, startFencedProxy } from "../../testing/proxy.ts";
import { RawClient } from "../../testing/rawclient.ts";
import { runDescribed } from "../../testing/requests.ts";
import {
  bind,
  cstring,
  describePortal,
  describeStatement,
  execute,
  FRONT,
  message,
  parse,
  query,
  sync,
} from "./messages.ts";

const group = (sql: string): Buffer[] => [...runDescribed(sql), sync()];
/** Each way to ask; every array is sent at once and waited for. */
const WAYS: Record<string, (sql: string) => Buffer[][]> = {
  simple: (sql) => [[query(sql)]],
  extended: (sql) => [group(sql)],
  "described first": (sql) => [
    [parse("", sql), describeStatement(""), sync()],
    [bind("", ""), execute(""), sync()],
  ],
  "under a name": (sql) => [
    [parse("s", sql), sync()],
    [bind("", "s"), describePortal(""), execute(""), sync()],
  ],
};
/** How many sessions hold a lock on a gate: nothing in it makes it more than a read. */
const INSIDE = "SELECT count(*) FROM pg_locks WHERE mode = 'RowShareLock'";

/** Reads by their look: what they call is hidden. */
const HIDING: Record<string, string> = {
  "a view": "SELECT * FROM writing",
  "a view, with a notice": "SELECT * FROM noticing",
  "an operator": "SELECT 1 ~~~> 'x'",
  "a function called as a column": "SELECT one.writes_for FROM one",
  "a policy": "SELECT * FROM guarded",
  "a domain's check": "SELECT 'x'::checked",
  "a function that tells the refusal in its own words": "SELECT * FROM wrapping",
  "a function that asks first": "SELECT * FROM asking",
};

const SCHEMA = `
  CREATE FUNCTION writes() RETURNS int LANGUAGE plpgsql AS $$ BEGIN INSERT INTO w VALUES ('f'); RETURN 1; END $$;
  CREATE FUNCTION notices() RETURNS int LANGUAGE plpgsql AS $$ BEGIN RAISE NOTICE 'once'; RETURN writes(); END $$;
  CREATE FUNCTION compares(int, text) RETURNS int LANGUAGE sql VOLATILE AS 'SELECT writes()';
  CREATE OPERATOR ~~~> (FUNCTION = compares, LEFTARG = int, RIGHTARG = text);
  CREATE TABLE one AS SELECT 1 AS i;
  CREATE FUNCTION writes_for(one) RETURNS int LANGUAGE sql AS 'SELECT writes()';
  CREATE TABLE guarded AS SELECT 1 AS i;
  ALTER TABLE guarded ENABLE ROW LEVEL SECURITY;
  CREATE POLICY p ON guarded USING (writes() = 1);
  CREATE FUNCTION checks(text) RETURNS boolean LANGUAGE sql AS 'SELECT writes() = 1';
  CREATE DOMAIN checked AS text CHECK (checks(VALUE));
  CREATE FUNCTION wraps() RETURNS int LANGUAGE plpgsql AS $$ BEGIN RETURN writes();
    EXCEPTION WHEN OTHERS THEN RAISE EXCEPTION 'wrapped: %', SQLERRM; END $$;
  CREATE FUNCTION asks() RETURNS int LANGUAGE plpgsql AS $$ BEGIN
    IF current_setting('transaction_read_only') = 'on' THEN RAISE 'not here' USING ERRCODE = 'MY001'; END IF;
    RETURN writes(); END $$;
  CREATE FUNCTION refuses() RETURNS int LANGUAGE plpgsql AS $$ BEGIN RAISE 'never'; END $$;
  CREATE VIEW writing AS SELECT writes() AS n;
  CREATE VIEW wrapping AS SELECT wraps() AS n;
  CREATE VIEW asking AS SELECT asks() AS n;
  CREATE VIEW refusing AS SELECT refuses() AS n;
  CREATE VIEW noticing AS SELECT notices() AS n;
  CREATE VIEW late AS SELECT CASE WHEN i < 3 THEN i ELSE writes() END AS n FROM generate_series(1, 3) i;
  CREATE FUNCTION swallows() RETURNS int LANGUAGE plpgsql AS $$ BEGIN
    BEGIN INSERT INTO w VALUES ('s'); EXCEPTION WHEN OTHERS THEN RETURN 0; END; RETURN 1; END $$;
  CREATE FUNCTION slow(only_on text) RETURNS int LANGUAGE plpgsql AS $$ BEGIN
    IF current_setting('transaction_read_only') = only_on THEN PERFORM pg_sleep(60); END IF; RETURN writes(); END $$;
  CREATE VIEW slowly AS SELECT slow('on') AS n;
  CREATE VIEW slow_again AS SELECT slow('off') AS n;
  GRANT ALL ON ALL TABLES IN SCHEMA public TO invoice_app;`;

/** As another connection of the client asks for it; resolves when the proxy has taken it. */
async function cancel(port: number, { key }: RawClient): Promise<void> {
  const code = Buffer.from([4, 210, 22, 46]);
  const socket = connect({ host: "127.0.0.1", port });
  const closed = new Promise((resolve) => socket.once("close", resolve));
  socket.end(message(0, Buffer.concat([code, key])));
  socket.resume();
  await closed;
}

describe.each(oldestAndNewest())("PostgreSQL %i", (version) => {
  let fenced: Fenced;
  let admin: pg.Client;
  let proxied: ProxyOfTest;
  let direct: { port: number; database: string };
  let jobs = 0;

  beforeAll(async () => {
    fenced = await startFenced({ version });
    admin = await fenced.connectAdmin();
    await admin.query("CREATE DATABASE direct");
    direct = { port: fenced.postgres.port, database: "direct" };
    for (const database of ["direct", "postgres"]) {
      const setup = database === "direct" ? await fenced.connectAdmin(database) : admin;
      await setup.query(judgedTableSql("invoice_app") + SCHEMA);
    }
  });
  // What turned out to write is known to the proxy from then on: each test begins without that.
  beforeEach(async () => {
    await proxied?.stop();
    proxied = await startFencedProxy(fenced.job(`bare-${++jobs}`), 1);
    await admin.query("TRUNCATE w");
  });
  afterAll(async () => {
    await proxied.stop();
    await fenced.stop();
  });

  const rows = async (): Promise<{ note: string; fenced: boolean }[]> => (await admin.query("SELECT * FROM w")).rows;
  async function ask(client: RawClient, ways: Buffer[][]): Promise<string[]> {
    const heard: string[] = [];
    for (const messages of ways) heard.push(...(await client.exchange(1, ...messages)));
    return heard;
  }

  test.each(Object.keys(WAYS))("a read takes no lock on the gate, a write does (%s)", async (way) => {
    const ways = WAYS[way] ?? (() => []);
    const client = await RawClient.open(proxied);
    expect(await ask(client, ways(INSIDE))).toContainEqual(expect.stringMatching(/^D .*0$/));
    await ask(client, [[message(FRONT.close, cstring("Ss")), sync()]]);
    expect(await ask(client, ways(`${INSIDE} AND writes() = 1`))).toContainEqual(expect.stringMatching(/^D .*1$/));
    await client.end();
  });

  const table = Object.keys(WAYS).flatMap((way) => Object.keys(HIDING).map((what) => [what, way] as const));
  test.each(table)(
    "INV-3: what %s writes is fenced, once, and the client sees what it sees directly (%s)",
    async (what, way) => {
      const ways = WAYS[way] ?? (() => []);
      const sql = HIDING[what] ?? "";
      const heard: string[][] = [];
      for (const target of [direct, proxied]) {
        const client = await RawClient.open(target);
        const transcript: string[] = [];
        for (let i = 0; i < 2; i++) {
          transcript.push(...(await ask(client, ways(sql))));
          await ask(client, [[message(FRONT.close, cstring("Ss")), sync()]]);
        }
        transcript.push(...(await ask(client, ways(`${sql} WHERE nosuch`))));
        heard.push(transcript);
        await client.end();
      }
      expect(heard[1]).toEqual(heard[0]);
      expect(await rows()).toEqual([
        { note: "f", fenced: true },
        { note: "f", fenced: true },
      ]);
    },
  );

  test.each(["read committed", "repeatable read", "serializable"])("INV-3: … at %s", async (level) => {
    const client = await proxied.connect();
    await client.query(`SET default_transaction_isolation = '${level}'`);
    for (const values of [undefined, [1]]) {
      const sql = values ? "SELECT * FROM writing WHERE n = $1" : "SELECT * FROM writing";
      expect((await client.query(sql, values)).rows).toEqual([{ n: 1 }]);
      expect((await client.query("SHOW transaction_isolation")).rows).toEqual([{ transaction_isolation: level }]);
    }
    expect(await rows()).toEqual(Array(2).fill({ note: "f", fenced: true }));
  });

  test("a function that swallows the refusal is called behind the fence, so that its write is not lost", async () => {
    const client = await proxied.connect();
    expect((await client.query("SELECT swallows() AS n")).rows).toEqual([{ n: 1 }]);
    expect((await client.query("SELECT swallows() AS n WHERE $1", [true])).rows).toEqual([{ n: 1 }]);
    expect(await rows()).toEqual(Array(2).fill({ note: "s", fenced: true }));
  });

  test("INV-3: a name that was a read, and that SQL inside a DO gave to a write, is fenced", async () => {
    const client = await RawClient.open(proxied);
    await client.exchange(1, parse("s", "SELECT 1"), sync());
    await client.exchange(
      1,
      query("DO $$ BEGIN EXECUTE 'DEALLOCATE s'; EXECUTE 'PREPARE s AS INSERT INTO w VALUES (1)'; END $$"),
    );
    expect((await client.exchange(1, bind("", "s"), execute(""), sync())).slice(-2)).toEqual(["C INSERT 0 1·", "Z I"]);
    await client.end();
    expect(await rows()).toEqual([{ note: "1", fenced: true }]);
  });

  test("INV-3: behind a seat belt that the client opened, pipelined or not, nothing is written unfenced", async () => {
    const open = "SELECT set_config('default_transaction_read_only', 'off', false)";
    const client = await RawClient.open(proxied);
    await client.exchange(2, ...group(open), ...group("SELECT * FROM writing"));
    await client.exchange(2, query(open), query("SELECT * FROM writing WHERE n > 0"));
    await client.exchange(1, query(`BEGIN; ${open}; COMMIT`));
    await client.exchange(1, query("SELECT * FROM writing WHERE n > 1 - 1"));
    await client.end();
    expect(await rows()).toEqual(Array(3).fill({ note: "f", fenced: true }));
  });

  test.each(Object.keys(WAYS))(
    "a client's own read-only default refuses the write as it does directly (%s)",
    async (way) => {
      const ways = WAYS[way] ?? (() => []);
      const heard: string[][] = [];
      for (const target of [direct, proxied]) {
        const client = await RawClient.open({
          ...target,
          parameters: { options: "-c default_transaction_read_only=on" },
        });
        heard.push(await ask(client, ways("SELECT * FROM writing")));
        await client.end();
      }
      expect(heard[1]).toEqual(heard[0]);
      expect(await rows()).toEqual([]);
    },
  );

  test.each(Object.keys(WAYS))("a function's own error is told once, as it is told directly (%s)", async (way) => {
    const heard: string[][] = [];
    for (const target of [direct, proxied]) {
      const client = await RawClient.open(target);
      heard.push([
        ...(await ask(client, (WAYS[way] ?? (() => []))("SELECT * FROM refusing"))),
        ...(await client.exchange(1, query("SELECT 1"))),
      ]);
      await client.end();
    }
    expect(heard[1]).toEqual(heard[0]);
  });

  test.each(Object.keys(WAYS))(
    "a write behind a row that was told fails once, and is fenced from then on (%s)",
    async (way) => {
      const ways = WAYS[way] ?? (() => []);
      const client = await RawClient.open(proxied);
      expect((await ask(client, ways("SELECT * FROM late"))).map((line) => line[0]).join("")).toMatch(/DDEZ$/);
      await ask(client, [[message(FRONT.close, cstring("Ss")), sync()]]);
      expect((await ask(client, ways("SELECT * FROM late"))).map((line) => line[0]).join("")).toMatch(/DDDCZ$/);
      await client.end();
      expect(await rows()).toEqual([{ note: "f", fenced: true }]);
    },
  );

  test("COPY of a query goes on as ever", async () => {
    const client = await RawClient.open(proxied);
    const sql = "COPY (SELECT * FROM writing) TO STDOUT";
    for (const messages of [[query(sql)], group(sql)]) {
      expect((await client.exchange(1, ...messages)).at(-2)).toBe("C COPY 1·");
    }
    await client.end();
    expect(await rows()).toEqual(Array(2).fill({ note: "f", fenced: true }));
  });

  test.each([
    ["its first run", "slowly"],
    ["its second run", "slow_again"],
  ])("a cancel reaches %s", async (_which, view) => {
    for (const request of [[query(`SELECT * FROM ${view} WHERE n = 1`)], group(`SELECT * FROM ${view} WHERE n > 0`)]) {
      const client = await RawClient.open(proxied);
      const asking = client.exchange(1, ...request);
      await until(admin, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep')");
      await cancel(proxied.port, client);
      expect(await asking).toContainEqual(expect.stringContaining("C=57014"));
      expect(await client.exchange(1, query("SELECT 1"))).toContainEqual("C SELECT 1·");
      await client.end();
    }
    expect(await rows()).toEqual([]);
  });

  test("a session that a takeover ended answers a read with the reason", async () => {
    const job = fenced.job(`bare-${jobs}`);
    const [idle, busy] = [await proxied.connect(), await proxied.connect()];
    const asking = failure(busy.query("SELECT * FROM slowly"));
    await until(admin, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep')");
    const ended = told(idle);
    await job.raise(2);
    expect(await asking).toMatchObject({ code: "LF001", severity: "FATAL" });
    expect(await ended).toMatchObject({ code: "LF001", severity: "FATAL" });
    expect(await rows()).toEqual([]);
  });
});
