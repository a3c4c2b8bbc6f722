import pg from "pg";
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import { systemClock } from "../platform/clock.ts";
import { failure, runSessionStart } from "../testing/fenced.ts";
import { postgresVersions, startPostgres, type TestPostgres } from "../testing/postgres.ts";
import { install, raise, readFence, schemaStatus } from "./client.ts";
import type { DatabaseAddress, FenceIdentity } from "./database.ts";
import { loadMigrations, SCHEMA_VERSION } from "./migrations.ts";
import { makeRole } from "./role.ts";

const clock = systemClock;
const identity: FenceIdentity = { fenceName: "a/b", generation: 1, holder: "uid-1", holderName: "b-1" };
const options = { drainMs: 300, nonce: "n", issuer: "test", clock };

test("the migrations are numbered without a gap, and the program speaks the last of them", () => {
  expect(loadMigrations().at(-1)?.version).toBe(SCHEMA_VERSION);
});

describe.each(postgresVersions().found)("install on PostgreSQL %i", (version) => {
  let postgres: TestPostgres;
  let admin: pg.Client;
  let count = 0;

  beforeAll(async () => {
    postgres = await startPostgres({
      version,
      settings: { allow_in_place_tablespaces: "on" },
      hba: [
        "host all postgres 127.0.0.1/32 trust",
        "host all installer 127.0.0.1/32 trust",
        "host all all 127.0.0.1/32 scram-sha-256",
      ],
    });
    admin = new pg.Client(postgres.url());
    await admin.connect();
  });
  afterAll(async () => {
    await admin?.end();
    await postgres?.remove();
  });

  const newDatabase = async (): Promise<DatabaseAddress> => {
    const database = `db_${++count}`;
    await admin.query(`CREATE DATABASE ${database}`);
    return { host: postgres.host, port: postgres.port, database, user: "postgres", sslmode: "prefer" };
  };
  const query = async (address: DatabaseAddress, sql: string): Promise<pg.QueryResult> => {
    const client = new pg.Client({
      host: address.host,
      port: address.port,
      database: address.database,
      user: address.user,
    });
    await client.connect();
    try {
      return await client.query(sql);
    } finally {
      await client.end();
    }
  };

  test("it installs once; the second run changes nothing and repairs the sentinel", async () => {
    const address = await newDatabase();
    expect(await schemaStatus(address)).toEqual({ installed: null, supported: SCHEMA_VERSION, problems: [] });
    expect(await install(address)).toEqual({ from: null, to: SCHEMA_VERSION, warnings: [] });
    await query(address, "GRANT ALL ON ALL TABLES IN SCHEMA fence TO PUBLIC");
    expect(await install(address)).toEqual({ from: SCHEMA_VERSION, to: SCHEMA_VERSION, warnings: [] });
    const { rows } = await query(
      address,
      "SELECT relacl::text AS acl FROM pg_class WHERE oid = 'fence.never'::regclass",
    );
    expect(rows[0].acl).toContain("=r/fence_owner");
  });

  test("several installs at once, in one database and in two of one cluster, end with one schema each", async () => {
    const [one, two] = [await newDatabase(), await newDatabase()];
    const results = await Promise.all([one, one, one, two, two].map((address) => install(address)));
    expect(results.filter(({ from }) => from === null)).toHaveLength(2);
    expect((await schemaStatus(two)).installed).toBe(SCHEMA_VERSION);
  });

  test("an upgrade runs only what is missing; a schema newer than the program is left alone", async () => {
    const address = await newDatabase();
    const [first] = loadMigrations();
    expect(await install(address, { migrations: [first!] })).toMatchObject({ from: null, to: 1 });
    const old = await failure(raise(address, identity, options));
    expect(old).toMatchObject({ code: "LF011" });
    expect(old.message).toContain(`has version 1, this program speaks ${SCHEMA_VERSION}`);
    expect(await install(address)).toMatchObject({ from: 1, to: SCHEMA_VERSION });
    await query(address, "INSERT INTO fence.schema_version (version) VALUES (99)");
    const newer = await failure(install(address));
    expect(newer).toMatchObject({ code: "LF011" });
    expect(newer.message).toContain("newer than this program");
    expect(await failure(raise(address, identity, options))).toMatchObject({ code: "LF011" });
  });

  test("a default tablespace, of the database or of the role, on which fence_owner has no right is in the way of neither install nor raise", async () => {
    const address = await newDatabase();
    const { database } = address;
    await admin.query(`CREATE TABLESPACE ${database} LOCATION ''`);
    await admin.query(`ALTER DATABASE ${database} SET default_tablespace = ${database}`);
    await install(address);
    await makeRole(address, { name: `of_${database}`, password: "x" });
    await query(address, `ALTER ROLE of_${database} SET default_tablespace = ${database}`);
    const app = { ...address, user: `of_${database}`, password: "x" };
    expect(await raise(app, identity, options)).toMatchObject({ generation: 1 });
  });

  test("a schema of that name that is not ours is left alone", async () => {
    const address = await newDatabase();
    await query(address, "CREATE SCHEMA fence");
    expect(await failure(install(address))).toMatchObject({ code: "LF011" });
  });

  test("a failed migration leaves nothing behind", async () => {
    const address = await newDatabase();
    const broken = { version: SCHEMA_VERSION + 1, name: "broken", sql: "CREATE TABLE fence.half (); SELECT 1/0" };
    expect(await failure(install(address, { migrations: [...loadMigrations(), broken] }))).toMatchObject({
      code: "LF015",
    });
    expect((await schemaStatus(address)).installed).toBeNull();
  });

  test("a role without rights is told what it lacks", async () => {
    const address = await newDatabase();
    await admin.query("DROP ROLE IF EXISTS installer; CREATE ROLE installer LOGIN");
    expect(await failure(install({ ...address, user: "installer" }))).toMatchObject({
      code: "LF012",
      hint: expect.stringContaining("and runs no application"),
    });
    await admin.query("DROP ROLE installer");
  });

  test("db role makes a role with a SCRAM password that can log in, be fenced and be ended", async () => {
    const address = await newDatabase();
    await install(address);
    expect(await makeRole(address, { name: `app "${count}`, password: "päss'wörd\\" })).toEqual({ created: true });
    const app = { ...address, user: `app "${count}`, password: "päss'wörd\\" };
    expect(await schemaStatus(app)).toMatchObject({ problems: [] });
    expect(await raise(app, identity, options)).toMatchObject({ generation: 1 });
    expect(await makeRole(address, { name: `app "${count}` })).toEqual({ created: false });
    const wrong = await failure(raise({ ...app, password: "wrong" }, identity, options));
    expect(wrong).toMatchObject({ code: "LF016", final: false });
    expect(wrong.message).toContain(`refuses the password of role "app "${count}"`);
    const { password: _none, ...without } = app;
    expect((await failure(raise(without, identity, options))).message).toContain("demands a password");
  });

  test("db role refuses a role that no gate can refuse, and changes nothing", async () => {
    const address = await newDatabase();
    await install(address);
    expect(await failure(makeRole(address, { name: "postgres" }))).toMatchObject({ code: "LF010" });
    const { rows } = await query(
      address,
      "SELECT pg_has_role('postgres', 'fence_sidecar', 'MEMBER'), count(*)::int AS members FROM pg_auth_members WHERE member = 'postgres'::regrole AND roleid = 'fence_sidecar'::regrole",
    );
    expect(rows[0].members).toBe(0);
  });
});

describe.each(postgresVersions().found)("without a superuser on PostgreSQL %i", (version) => {
  test("a role with CREATEROLE and CREATE on the database installs, makes roles, and takeovers end their sessions", async () => {
    const postgres = await startPostgres({ version });
    onTestFinished(() => postgres.remove());
    const admin = new pg.Client(postgres.url());
    await admin.connect();
    await admin.query("CREATE ROLE installer LOGIN CREATEROLE");
    await admin.query("CREATE DATABASE ledger");
    await admin.query("GRANT CREATE, CONNECT ON DATABASE ledger TO installer WITH GRANT OPTION");
    const address: DatabaseAddress = {
      host: postgres.host,
      port: postgres.port,
      database: "ledger",
      user: "installer",
      sslmode: "disable",
    };
    const { warnings } = await install(address);
    // Up to 15, CREATEROLE may grant any role that is not a superuser.
    expect(warnings).toHaveLength(version >= 16 ? 1 : 0);
    expect(await install(address)).toMatchObject({ from: SCHEMA_VERSION });
    const { rows } = await admin.query("SELECT pg_has_role('installer', 'fence_owner', $1) AS still", [
      version >= 16 ? "SET" : "MEMBER",
    ]);
    expect(rows[0].still).toBe(false);
    await makeRole(address, { name: "invoice_app" });
    const app = { ...address, user: "invoice_app" };
    expect(await schemaStatus(app)).toMatchObject({ problems: [] });
    const { jobId } = await raise(app, identity, options);
    const session = new pg.Client({
      host: postgres.host,
      port: postgres.port,
      database: "ledger",
      user: "invoice_app",
      options: "-c default_transaction_read_only=on",
    });
    session.on("error", () => {});
    await session.connect();
    await runSessionStart(session, jobId, identity);
    const next = { ...identity, generation: 2, holder: "uid-2" };
    expect(await raise(app, next, options)).toMatchObject({ sessionsEnded: 1 });
    await expect(session.query("SELECT 1")).rejects.toThrow();
    await admin.end();
  });
});

describe("what a database can be in the way of", () => {
  let postgres: TestPostgres;
  let address: DatabaseAddress;
  beforeAll(async () => {
    postgres = await startPostgres({});
    address = { host: postgres.host, port: postgres.port, database: "postgres", user: "postgres", sslmode: "disable" };
  });
  afterAll(() => postgres?.remove());

  test("without the schema the raise and the row say how to install it", async () => {
    for (const attempt of [() => raise(address, identity, options), () => readFence(address, "a/b", { clock })]) {
      const error = await failure(attempt());
      expect(error).toMatchObject({ code: "LF011", final: false });
      expect(error.hint).toContain("fencedjob db install");
    }
  });

  test("a missing database, a missing role, TLS that the server lacks, and a closed port each say which", async () => {
    const cases: [Partial<DatabaseAddress>, string, RegExp][] = [
      [{ database: "nowhere" }, "LF015", /database "nowhere" does not exist/],
      [{ user: "nobody" }, "LF016", /does not let role "nobody"/],
      [{ sslmode: "require" }, "LF015", /no TLS connection with .* under sslmode=require/],
      [{ port: 1 }, "LF015", /cannot be reached/],
      [{ host: "no-such-host.invalid" }, "LF015", /cannot be reached/],
    ];
    for (const [change, code, message] of cases) {
      const error = await failure(raise({ ...address, ...change }, identity, options));
      expect(error).toMatchObject({ code, final: false });
      expect(error.message).toMatch(message);
      expect(error.detail).not.toBe("");
    }
  });

  test("a server that accepts and never answers does not hold the reader longer than its bound", async () => {
    const { createServer } = await import("node:net");
    const silent = createServer(() => {});
    await new Promise<void>((resolve) => silent.listen(0, "127.0.0.1", resolve));
    const { port } = silent.address() as { port: number };
    const startedMs = clock.monoMs();
    expect(await failure(readFence({ ...address, port }, "a/b", { clock, timeoutMs: 300 }))).toMatchObject({
      code: "LF015",
    });
    // Without one of its own it would be five seconds.
    expect(clock.monoMs() - startedMs).toBeLessThan(5_000);
    silent.close();
  });
});
