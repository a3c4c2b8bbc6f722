/** COPY FROM STDIN, its Sync sent with it as libpq does, and failing in front of its data. */
import type pg from "pg";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { type Fenced, startFenced } from "../../testing/fenced.ts";
import { judgedTableSql } from "../../testing/judge.ts";
import { oldestAndNewest } from "../../testing/postgres.ts";
import { type ProxyOfTest, startFencedProxy } from "../../testing/proxy.ts";
import { RawClient } from "../../testing/rawclient.ts";
import { group, run } from "../../testing/requests.ts";
import { until } from "../../testing/until.ts";
import { bind, copyData, copyDone, execute, parse, query, sync } from "./messages.ts";

const INSERT = "INSERT INTO w (note) VALUES ('x')";

/** Answered with a CopyInResponse, and an error behind it. */
const FAILING = {
  "into a view": "COPY v (note) FROM STDIN",
  "that a trigger of the statement refuses": "COPY refused FROM STDIN",
  "that cannot freeze": "COPY plain FROM STDIN (FREEZE)",
};

describe.each(oldestAndNewest())("PostgreSQL %i", (version) => {
  let fenced: Fenced;
  let admin: pg.Client;
  let proxied: ProxyOfTest;

  beforeAll(async () => {
    fenced = await startFenced({ version });
    admin = await fenced.connectAdmin();
    await admin.query("CREATE DATABASE direct");
    for (const database of ["direct", "postgres"]) {
      await (await fenced.connectAdmin(database)).query(`
        ${judgedTableSql("invoice_app")}
        CREATE VIEW v AS SELECT note FROM w;
        CREATE TABLE plain (note text);
        CREATE TABLE refused (note text);
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not now'; END $$;
        CREATE TRIGGER refuse BEFORE INSERT ON refused EXECUTE FUNCTION refuse();
        CREATE FUNCTION writes() RETURNS int LANGUAGE plpgsql AS $$ BEGIN ${INSERT}; RETURN 1; END $$;
        CREATE VIEW reads AS SELECT writes() AS n;
        GRANT ALL ON v, plain, refused, reads TO invoice_app`);
    }
    proxied = await startFencedProxy(fenced, 1);
  });
  afterAll(async () => {
    await proxied.stop();
    await fenced.stop();
  });

  test("INV-3: a read behind it does not overtake what is pipelined behind it", async () => {
    const client = await RawClient.open(proxied);
    await client.exchange(1, ...group(INSERT));
    await admin.query("SELECT pg_advisory_lock(1)");
    const opens = "SELECT set_config('default_transaction_read_only', 'off', false), pg_advisory_lock_shared(1)";
    await client.exchange(1, ...run(FAILING["into a view"]), sync(), copyDone(), ...group(opens));
    const taken = proxied.proxy.counters.read().messages;
    client.send(query("SELECT n FROM reads"));
    await until(() => proxied.proxy.counters.read().messages > taken);
    await admin.query("SELECT pg_advisory_unlock(1)");
    await client.until(() => client.readies === 4);
    expect((await admin.query("SELECT count(*)::int AS n FROM w WHERE NOT fenced")).rows).toEqual([{ n: 0 }]);
    expect(client.closed).toBe(false);
    await client.end();
  });

  async function heard(target: { port: number; database: string }, sql: string): Promise<string[]> {
    const client = await RawClient.open(target);
    const answers = await client.exchange(1, ...run(sql), sync());
    answers.push(...(await client.exchange(1, copyData(Buffer.from("a\n")), copyDone(), sync())));
    answers.push(...(await client.exchange(1, ...group(INSERT))));
    answers.push(...(await client.exchange(1, query("BEGIN"))));
    answers.push(...(await client.exchange(1, ...run(sql), sync())));
    answers.push(...(await client.exchange(1, query("ROLLBACK"))));
    answers.push(...(await client.exchange(3, query(sql), sync(), sync())));
    answers.push(...(await client.exchange(2, query(`SHOW work_mem; ${sql}`), sync())));
    answers.push(...(await client.exchange(1, ...group(INSERT))));
    expect(client.closed).toBe(false);
    await client.end();
    return answers;
  }

  test.each(Object.keys(FAILING))("a COPY %s is told as without the proxy, and the session goes on", async (what) => {
    const sql = FAILING[what as keyof typeof FAILING];
    const direct = await heard({ port: fenced.postgres.port, database: "direct" }, sql);
    expect(direct.filter((line) => /^[GEZ]/.test(line)).map((line) => line[0])).toEqual([..."GEZZZZGEZZGEZZZGEZZZ"]);
    expect(await heard({ port: proxied.port, database: "postgres" }, sql)).toEqual(direct);
  });

  const ways = {
    "by the unnamed statement": [...run("COPY plain FROM STDIN"), sync()],
    "by a name": [...run("COPY plain FROM STDIN", "c"), sync()],
    "by a name that is not ASCII": [...run("COPY plain FROM STDIN", "é"), sync()],
    "by EXECUTE": [parse("c", "COPY plain FROM STDIN"), ...run("EXECUTE c"), sync()],
    "through a portal": [parse("", "COPY plain FROM STDIN"), bind("p", ""), execute("p"), sync()],
    out: [...run("COPY plain TO STDOUT"), sync()],
    "out, behind something": [...run(INSERT), ...run("COPY plain TO STDOUT"), ...run(INSERT), sync()],
  };
  test.each(Object.keys(ways))("a COPY %s, its Sync sent with it", async (way) => {
    const sent = ways[way as keyof typeof ways];
    const answers: string[][] = [];
    for (const target of [
      { port: fenced.postgres.port, database: "direct" },
      { port: proxied.port, database: "postgres" },
    ]) {
      const client = await RawClient.open(target);
      client.send(...sent);
      const isOut = way.startsWith("out");
      if (!isOut) await client.until(() => client.transcript.at(-1)?.startsWith("G") === true);
      const data = isOut ? [] : [copyData(Buffer.from("a\n")), copyDone(), sync()];
      client.send(...data, ...group(INSERT));
      await client.until(() => client.readies === 3);
      answers.push(client.transcript.slice(client.transcript.findIndex((line) => line.startsWith("Z")) + 1));
      await client.end();
    }
    expect(answers[1]).toEqual(answers[0]);
  });
});
