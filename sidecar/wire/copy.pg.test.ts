/** COPY in both directions and both protocols, done, given up by the client, and failing at each point: as without the proxy. */
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { type Fenced, startFenced } from "../../testing/fenced.ts";
import { oldestAndNewest } from "../../testing/postgres.ts";
import { type ProxyOfTest, startFencedProxy } from "../../testing/proxy.ts";
import { RawClient } from "../../testing/rawclient.ts";
import { run } from "../../testing/requests.ts";
import { copyData, copyDone, copyFail, flush, query, sync } from "./messages.ts";

const data = (text: string): Buffer => copyData(Buffer.from(text));
const IN = "COPY c FROM STDIN";

/** The texts of one request, and the messages behind it. */
type Copying = readonly [sql: string, ...messages: Buffer[]];

const COPYING: Record<string, Copying> = {
  "in, done": [IN, data("1\ta\n2\t"), data("b\n"), copyDone()],
  "in, of nothing": [IN, copyDone()],
  "in, without a line end behind the last row": [IN, data("1\ta"), copyDone()],
  "in, fails before it begins": ["COPY nosuch FROM STDIN", data("1\ta\n"), copyDone()],
  "in, fails by its options": [`${IN} (FORMAT nonsense)`, data("1\ta\n"), copyDone()],
  "in, fails in its first row": [IN, data("bad\n"), copyDone()],
  "in, fails in a row in the middle, and more comes behind": [
    IN,
    data("1\ta\n"),
    data("x\ty\n"),
    data("2\tb\n"),
    data("3\tc\n"),
    copyDone(),
  ],
  "in, fails and is then given up": [IN, data("bad\n"), copyFail("mine"), copyFail("again")],
  "in, fails at a duplicate": [IN, data("1\ta\n1\tb\n"), copyDone()],
  "in, fails at its end, in the middle of a row": [IN, data("1"), copyDone()],
  "in, fails at its end, in binary": [`${IN} (FORMAT binary)`, data("PGCOPY"), copyDone()],
  "in, fails in a trigger of a row": [IN, data("1\ta\n13\tb\n2\tc\n"), copyDone()],
  "in, fails in a trigger of the statement, behind its end": [IN, data("1\ta\n666\tb\n"), copyDone()],
  "in, fails at the commit behind it": ["COPY late FROM STDIN", data("1\n1\n"), copyDone()],
  "in, given up at once": [IN, copyFail("no")],
  "in, given up behind rows": [IN, data("1\ta\n"), copyFail("no")],
  "out, done": ["COPY (SELECT i, 'x' FROM generate_series(1, 3) i) TO STDOUT"],
  "out, fails before it begins": ["COPY (SELECT nosuch) TO STDOUT"],
  "out, fails in its first row": ["COPY (SELECT 1 / (1 - i) FROM generate_series(1, 3) i) TO STDOUT"],
  "out, fails behind rows": ["COPY (SELECT 1 / (3 - i) FROM generate_series(1, 5) i) TO STDOUT"],
  "out, of what it writes": ["COPY (INSERT INTO c VALUES (1, 'r') RETURNING *) TO STDOUT"],
  "out, fails in what it writes": ["COPY (INSERT INTO c VALUES (1, 'r'), (1, 's') RETURNING *) TO STDOUT"],
};

/** Ways to ask: what is sent, and how many ReadyForQuery it brings. */
const WAYS: Record<string, (copying: Copying) => readonly [readies: number, ...messages: Buffer[]][]> = {
  simple: ([sql, ...messages]) => [[1, query(sql), ...messages]],
  "simple, in a block": ([sql, ...messages]) => [
    [1, query("BEGIN")],
    [1, query(sql), ...messages],
    [1, query("SELECT count(*) FROM c")],
    [1, query("COMMIT")],
  ],
  "simple, between other statements": ([sql, ...messages]) => [
    [1, query(`INSERT INTO c VALUES (100, 'before'); ${sql}; INSERT INTO c VALUES (101, 'behind')`), ...messages],
  ],
  "simple, behind a COMMIT in the text": ([sql, ...messages]) => [
    [1, query(`INSERT INTO c VALUES (100, 'before'); COMMIT; ${sql}`), ...messages],
  ],
  extended: ([sql, ...messages]) => [[1, ...run(sql), ...messages, sync()]],
  "extended, with a Flush": ([sql, ...messages]) => [[1, ...run(sql), flush(), ...messages, flush(), sync()]],
  "extended, in a block": ([sql, ...messages]) => [
    [1, ...run("BEGIN"), sync()],
    [1, ...run(sql), ...messages, sync()],
    [1, ...run("SELECT count(*) FROM c"), sync()],
    [1, ...run("COMMIT"), sync()],
  ],
  "extended, between other statements": ([sql, ...messages]) => [
    [
      1,
      ...run("INSERT INTO c VALUES (100, 'before')"),
      ...run(sql),
      ...messages,
      ...run("INSERT INTO c VALUES (101, 'behind')"),
      sync(),
    ],
  ],
  "extended, between other groups": ([sql, ...messages]) => [
    [
      3,
      ...run("INSERT INTO c VALUES (100, 'before')"),
      sync(),
      ...run(sql),
      ...messages,
      sync(),
      ...run("INSERT INTO c VALUES (101, 'behind')"),
      sync(),
    ],
  ],
};

describe.each(oldestAndNewest())("PostgreSQL %i", (version) => {
  let fenced: Fenced;
  let proxied: ProxyOfTest;

  beforeAll(async () => {
    fenced = await startFenced({ version });
    await (await fenced.connectAdmin()).query("CREATE DATABASE direct");
    for (const database of ["direct", "postgres"]) {
      await (await fenced.connectAdmin(database)).query(`
        CREATE TABLE c (i int PRIMARY KEY, t text);
        CREATE TABLE late (i int UNIQUE DEFERRABLE INITIALLY DEFERRED);
        CREATE FUNCTION thirteen() RETURNS trigger LANGUAGE plpgsql AS $$
          BEGIN IF NEW.i = 13 THEN RAISE 'a row of 13'; END IF; RETURN NEW; END $$;
        CREATE TRIGGER thirteen BEFORE INSERT ON c FOR EACH ROW EXECUTE FUNCTION thirteen();
        CREATE FUNCTION beast() RETURNS trigger LANGUAGE plpgsql AS $$
          BEGIN IF EXISTS (SELECT FROM c WHERE i = 666) THEN RAISE 'a row of 666'; END IF; RETURN NULL; END $$;
        CREATE TRIGGER beast AFTER INSERT ON c EXECUTE FUNCTION beast();
        GRANT ALL ON c, late TO invoice_app`);
    }
    proxied = await startFencedProxy(fenced, 1);
  });
  afterAll(async () => {
    await proxied.stop();
    await fenced.stop();
  });

  async function heard(target: { port: number; database: string }, way: string): Promise<Record<string, string[]>> {
    const client = await RawClient.open(target);
    const answers: Record<string, string[]> = {};
    for (const [what, copying] of Object.entries(COPYING)) {
      const from = client.transcript.length;
      for (const [readies, ...messages] of WAYS[way]?.(copying) ?? []) await client.exchange(readies, ...messages);
      await client.exchange(1, query("SELECT * FROM c ORDER BY i"));
      await client.exchange(1, query("SELECT * FROM late"));
      answers[what] = client.transcript.slice(from);
      await client.exchange(1, query("TRUNCATE c, late"));
    }
    expect(client.closed).toBe(false);
    await client.end();
    return answers;
  }

  test.each(Object.keys(WAYS))("COPY, %s", async (way) => {
    const direct = await heard({ port: fenced.postgres.port, database: "direct" }, way);
    expect(await heard({ port: proxied.port, database: "postgres" }, way)).toEqual(direct);
    // Else nothing was compared.
    const failed = Object.keys(direct).filter((what) => direct[what]?.some((line) => line.startsWith("E")));
    const toFail = Object.keys(COPYING).filter((what) => /fails|given up/.test(what));
    expect(failed).toEqual(
      expect.arrayContaining(toFail.filter((what) => what !== "in, fails at the commit behind it")),
    );
  });
});
