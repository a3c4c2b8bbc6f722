/** The same bytes sent directly and through the proxy bring the same messages back, in the same order. */
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { type Fenced, startFenced } from "../../testing/fenced.ts";
import { postgresVersions } from "../../testing/postgres.ts";
import { type ProxyOfTest, startFencedProxy } from "../../testing/proxy.ts";
import { RawClient } from "../../testing/rawclient.ts";
import { runDescribed as run } from "../../testing/requests.ts";
import {
  bind,
  closePortal,
  closeStatement,
  copyData,
  copyDone,
  copyFail,
  cstring,
  describeStatement,
  execute,
  FRONT,
  flush,
  message,
  parse,
  query,
  sync,
} from "./messages.ts";

const copyText = (text: string): Buffer => copyData(Buffer.from(text));
const executeRows = (portal: string, rows: number): Buffer => {
  const count = Buffer.alloc(4);
  count.writeUInt32BE(rows, 0);
  return message(FRONT.execute, Buffer.concat([cstring(portal), count]));
};

/** What is sent, and how many ReadyForQuery answer it. */
type Step = readonly [readies: number, ...parts: Buffer[]];

const SCENARIOS: Record<string, Step[]> = {
  "simple statements, several in one message, and errors in the middle": [
    [1, query("INSERT INTO t VALUES (1, 'a') RETURNING *")],
    [1, query("INSERT INTO t VALUES (2, 'b'); SELECT * FROM t ORDER BY id; DELETE FROM t WHERE id = 2")],
    [1, query("INSERT INTO t VALUES (3, 'c'); SELECT 1/0; INSERT INTO t VALUES (4, 'd')")],
    [1, query("INSERT INTO t VALUES (5, 'e'); COMMIT; INSERT INTO t VALUES (6, 'f'); SELECT nosuch FROM t")],
    [1, query("BEGIN; INSERT INTO t VALUES (7, 'g'); COMMIT; INSERT INTO t VALUES (8, 'h')")],
    [1, query("SELECT id FROM t ORDER BY id")],
  ],
  "empty queries, comments, and stray semicolons": [
    [1, query("")],
    [1, query(";;")],
    [1, query("-- nothing")],
    [1, query("/* a */ SELECT 1 -- b")],
    [1, parse("", ""), bind("", ""), execute(""), sync()],
    [1, query("BEGIN")],
    [1, query("")],
    [1, query("ROLLBACK")],
  ],
  "error positions, counted in characters": [
    [1, query("SELECT 'ääö', nosuch")],
    [1, query("  SELECT é FRM t")],
    [1, query("SELECT 1; SELECT 'ü'; COMMIT; SELECT 'ß', nosuch")],
    [1, ...run("SELECT 'ääö', nosuch"), sync()],
    [1, query("DO $$ BEGIN PERFORM nosuch; END $$")],
  ],
  "extended: one group, several statements, error skips to Sync": [
    [1, ...run("INSERT INTO t VALUES (1, 'a')"), ...run("SELECT count(*) FROM t"), sync()],
    [1, ...run("INSERT INTO t VALUES (2, 'b')"), ...run("SELECT 1/0"), ...run("INSERT INTO t VALUES (3, 'c')"), sync()],
    [1, query("SELECT id FROM t")],
  ],
  "extended: pipelined groups, one fails": [
    [
      3,
      ...run("INSERT INTO t VALUES (1, 'a')"),
      sync(),
      ...run("SELECT 1/0"),
      sync(),
      ...run("INSERT INTO t VALUES (2, 'b')"),
      sync(),
    ],
    [
      4,
      ...run("BEGIN"),
      sync(),
      ...run("INSERT INTO t VALUES (3, 'c')"),
      sync(),
      ...run("COMMIT"),
      sync(),
      ...run("SELECT count(*) FROM t"),
      sync(),
    ],
    [1, query("SELECT id FROM t ORDER BY id")],
  ],
  "extended: BEGIN, work and COMMIT in one group": [
    [
      1,
      ...run("BEGIN ISOLATION LEVEL SERIALIZABLE"),
      ...run("INSERT INTO t VALUES (1, 'a')"),
      ...run("COMMIT"),
      sync(),
    ],
    [1, ...run("INSERT INTO t VALUES (2, 'b')"), ...run("SELECT count(*) FROM t"), sync()],
    [1, query("SELECT id FROM t ORDER BY id")],
  ],
  "extended: prepare and describe first, flush, then bind": [
    [1, parse("s", "SELECT id, v FROM t WHERE id = $1"), describeStatement("s"), sync()],
    [
      1,
      parse("i", "INSERT INTO t VALUES (1, 'x') RETURNING id"),
      describeStatement("i"),
      flush(),
      bind("", "i"),
      execute(""),
      sync(),
    ],
    [1, bind("", "i"), execute(""), sync()],
    [1, closeStatement("i"), closePortal("x"), sync()],
    [1, bind("", "i"), execute(""), sync()],
    [1, sync()],
  ],
  "extended: portals with row limits": [
    [1, query("INSERT INTO t SELECT i, 'x' FROM generate_series(1, 10) i")],
    [
      1,
      parse("", "SELECT id FROM t ORDER BY id"),
      bind("p", ""),
      executeRows("p", 4),
      executeRows("p", 4),
      executeRows("p", 4),
      sync(),
    ],
    [1, query("BEGIN")],
    [1, parse("", "SELECT id FROM t ORDER BY id"), bind("p", ""), executeRows("p", 4), sync()],
    [1, executeRows("p", 4), sync()],
    [1, closePortal("p"), sync()],
    [1, query("DECLARE c CURSOR FOR SELECT id FROM t ORDER BY id; FETCH 2 FROM c")],
    [1, query("FETCH 3 FROM c; MOVE 1 IN c; FETCH 1 FROM c; CLOSE c")],
    [1, query("COMMIT")],
  ],
  "blocks at every isolation level, savepoints, failed blocks": [
    [1, query("BEGIN ISOLATION LEVEL REPEATABLE READ")],
    [1, query("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")],
    [1, query("INSERT INTO t VALUES (1, 'a')")],
    [1, query("SHOW transaction_isolation")],
    [1, query("SAVEPOINT a")],
    [1, query("INSERT INTO t VALUES (1, 'again')")],
    [1, query("SELECT 1")],
    [1, ...run("SELECT 1"), sync()],
    [1, query("ROLLBACK TO a")],
    [1, ...run("INSERT INTO t VALUES (2, 'b')"), sync()],
    [1, query("RELEASE a")],
    [1, query("COMMIT AND CHAIN")],
    [1, query("INSERT INTO t VALUES (3, 'c')")],
    [1, query("ROLLBACK AND CHAIN")],
    [1, ...run("INSERT INTO t VALUES (4, 'd')"), sync()],
    [1, query("END")],
    [1, query("BEGIN")],
    [1, query("SELECT 1/0")],
    [1, query("COMMIT")],
    [1, query("SELECT id FROM t ORDER BY id")],
    [1, query("COMMIT")],
    [1, query("SAVEPOINT nope")],
  ],
  "read-only blocks stay read-only": [
    [1, query("BEGIN READ ONLY")],
    [1, query("INSERT INTO t VALUES (1, 'a')")],
    [1, query("ROLLBACK")],
    [1, query("START TRANSACTION ISOLATION LEVEL SERIALIZABLE, READ ONLY, DEFERRABLE")],
    [1, ...run("SELECT count(*) FROM t"), sync()],
    [1, ...run("INSERT INTO t VALUES (1, 'a')"), sync()],
    [1, query("ROLLBACK")],
    [1, query("BEGIN")],
    [1, query("SET TRANSACTION READ ONLY")],
    [1, query("INSERT INTO t VALUES (1, 'a')")],
    [1, query("ROLLBACK")],
    [1, query("BEGIN READ ONLY; SELECT 1; COMMIT; INSERT INTO t VALUES (1, 'a')")],
    [1, query("SELECT id FROM t")],
  ],
  "the session's own read-only default is kept and reported": [
    [1, query("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY")],
    [1, query("INSERT INTO t VALUES (1, 'a')")],
    [1, ...run("INSERT INTO t VALUES (1, 'a')"), sync()],
    [1, query("BEGIN READ WRITE")],
    [1, query("INSERT INTO t VALUES (1, 'a')")],
    [1, query("COMMIT")],
    [1, query("SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE")],
    [1, query("INSERT INTO t VALUES (2, 'b')")],
    [1, query("SELECT id FROM t ORDER BY id")],
  ],
  "COPY in both directions and protocols, done and failed": [
    [0, query("COPY t FROM STDIN")],
    [1, copyText("1\ta\n2\t"), copyText("b\n"), copyDone()],
    [1, query("COPY t TO STDOUT")],
    [0, query("COPY t FROM STDIN")],
    [1, copyText("3\tc\n"), copyFail("no more")],
    [1, query("COPY t FROM STDIN"), copyText("nonsense\n"), copyText("x\n"), copyDone()],
    [1, ...run("COPY t FROM STDIN"), copyText("5\te\n"), copyDone(), sync()],
    [1, ...run("COPY t FROM STDIN"), sync(), copyText("6\tf\n"), copyDone(), sync()],
    [1, ...run("COPY t FROM STDIN"), copyText("bad\n"), copyDone(), sync()],
    [1, ...run("COPY t TO STDOUT"), sync()],
    [1, query("COPY t FROM STDIN; SELECT count(*) FROM t"), copyText("9\ti\n"), copyDone()],
    [1, query("SELECT id FROM t ORDER BY id")],
  ],
  "DISCARD of less than all, in front of a write of its group": [
    [1, ...run("DISCARD TEMP"), ...run("INSERT INTO t VALUES (1, 'a')"), sync()],
    [1, ...run("DISCARD PLANS"), ...run("INSERT INTO t VALUES (2, 'b')"), sync()],
    [1, ...run("DISCARD SEQUENCES"), ...run("COMMIT"), ...run("INSERT INTO t VALUES (3, 'c')"), sync()],
    [1, parse("d", "DISCARD TEMP"), ...run("BEGIN ISOLATION LEVEL SERIALIZABLE"), bind("", "d"), execute(""), sync()],
    [1, query("ROLLBACK; SELECT id FROM t ORDER BY id")],
  ],
  "DISCARD ALL and DEALLOCATE ALL do not break what follows": [
    [1, ...run("INSERT INTO t VALUES (1, 'a')"), sync()],
    [1, query("DISCARD ALL")],
    [1, ...run("INSERT INTO t VALUES (2, 'b')"), sync()],
    [1, ...run("DEALLOCATE ALL"), sync()],
    [1, ...run("INSERT INTO t VALUES (3, 'c')"), sync()],
    [2, ...run("DEALLOCATE ALL"), sync(), ...run("INSERT INTO t VALUES (4, 'd')"), sync()],
    [1, query("PREPARE p AS INSERT INTO t VALUES (5, 'e')")],
    [1, query("EXECUTE p")],
    [1, query("SELECT id FROM t ORDER BY id")],
  ],
  "settings, notices and warnings": [
    [1, query("SET application_name = 'x'; SET datestyle = 'SQL'")],
    [1, query("SHOW application_name")],
    [1, query("DO $$ BEGIN RAISE NOTICE 'seen'; RAISE WARNING 'seen too'; END $$")],
    [1, query("COMMIT")],
    [1, query("BEGIN")],
    [1, query("BEGIN")],
    [1, query("SET LOCAL work_mem = '1MB'")],
    [1, query("ROLLBACK")],
    [1, query("ROLLBACK")],
    [1, query("RESET ALL")],
    [1, query("SHOW application_name")],
    [1, query("LISTEN a; NOTIFY a, 'x'; UNLISTEN *")],
  ],
  "a simple query inside an extended group of a block": [
    [1, query("BEGIN")],
    [2, ...run("INSERT INTO t VALUES (1, 'a')"), query("SAVEPOINT s"), ...run("INSERT INTO t VALUES (2, 'b')"), sync()],
    [1, query("COMMIT")],
    [1, query("SELECT id FROM t ORDER BY id")],
  ],
  "functions with bodies of several statements, rules": [
    [
      1,
      query(
        "CREATE FUNCTION f() RETURNS int LANGUAGE sql BEGIN ATOMIC INSERT INTO t VALUES (1, 'a'); SELECT 5; END; SELECT f()",
      ),
    ],
    [1, query("CREATE RULE r AS ON DELETE TO t DO INSTEAD (UPDATE t SET v = 'kept'; SELECT 1)")],
    [1, query("DELETE FROM t; SELECT * FROM t")],
  ],
};

const versions = postgresVersions().found;
describe.each(versions)("PostgreSQL %i", (version) => {
  let fenced: Fenced;
  let proxied: ProxyOfTest;

  beforeAll(async () => {
    fenced = await startFenced({ version });
    const admin = await fenced.connectAdmin();
    await admin.query("CREATE DATABASE direct OWNER invoice_app");
    await admin.query("GRANT CREATE ON SCHEMA public TO invoice_app");
    proxied = await startFencedProxy(fenced, 1);
  });
  afterAll(async () => {
    await proxied.stop();
    await fenced.stop();
  });

  // The versions in between are smoke tests.
  const names = Object.keys(SCENARIOS).filter((_name, i) => version === 15 || version === 18 || i % 4 === 0);
  test.each(names)("%s", async (name) => {
    const outcomes: string[][] = [];
    for (const target of [
      { port: fenced.postgres.port, database: "direct" },
      { port: proxied.port, database: "postgres" },
    ]) {
      const client = await RawClient.open(target);
      await client.exchange(1, query("CREATE TABLE t (id int PRIMARY KEY, v text)"));
      const transcript: string[] = [];
      for (const [readies, ...parts] of SCENARIOS[name] ?? []) {
        transcript.push("---", ...(await client.exchange(readies, ...parts)));
      }
      await client.exchange(1, query("ROLLBACK"));
      await client.exchange(1, query("SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE"));
      await client.exchange(1, query("DROP TABLE t CASCADE"));
      await client.exchange(1, query("DROP FUNCTION IF EXISTS f"));
      await client.end();
      outcomes.push(transcript);
    }
    expect(outcomes[1]).toEqual(outcomes[0]);
    expect(outcomes[1]?.length).toBeGreaterThan((SCENARIOS[name]?.length ?? 0) * 2 - 1);
  });
});
