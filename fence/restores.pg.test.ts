/**
 * Restores for real (INV-8): whatever was done to a database, it never accepts a generation of two holders in one history, it
 * refuses the sessions of the owner before, and the next owner works. docs/restores.md says the same for people.
 */
import { execFileSync } from "node:child_process";
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import pg from "pg";
import { describe, expect, onTestFinished, test } from "vitest";
import { systemClock as clock } from "../platform/clock.ts";
import { type Failure, type Fenced, failure, runSessionStart, startFenced, until } from "../testing/fenced.ts";
import { type PostgresOptions, startPostgres, type TestPostgres } from "../testing/postgres.ts";
import { type Raised, raise } from "./client.ts";
import type { DatabaseAddress, FenceIdentity } from "./database.ts";
import { enterLockSql } from "./enter.ts";
import { beat, type Witness } from "./witness.ts";

const DRAIN_MS = 200;

/** A pod that has raised: what it remembers of it, and what its sidecar does with that. */
class Owner {
  readonly identity: FenceIdentity;
  readonly raised: Raised;
  witness: Witness;

  constructor(identity: FenceIdentity, raised: Raised) {
    this.identity = identity;
    this.raised = raised;
    this.witness = raised.witness;
  }

  /** A session of its application, as the wire opens one. */
  async session(at: DatabaseAddress): Promise<pg.Client> {
    const client = await connect(at, "-c default_transaction_read_only=on");
    await runSessionStart(client, this.raised.jobId, this.identity, this.raised.incarnation, this.witness);
    return client;
  }

  async beat(at: DatabaseAddress): Promise<void> {
    const { raised, witness } = this;
    const next = `n${witness.counter + 1}`;
    this.witness = await beat(at, this.identity, { ...raised, witness, next, timeoutMs: 20_000, clock });
  }

  async write(client: pg.Client): Promise<void> {
    const { jobId } = this.raised;
    const { generation, holder } = this.identity;
    await client.query(`BEGIN READ WRITE; ${enterLockSql(jobId, generation)}`);
    await client.query("INSERT INTO written VALUES ($1, $2)", [generation, holder]);
    await client.query("COMMIT");
  }
}

async function connect(address: DatabaseAddress, options = ""): Promise<pg.Client> {
  const { host, port, user, database } = address;
  const client = new pg.Client({ host, port, user, database, options });
  client.on("error", () => {});
  await client.connect();
  onTestFinished(() => client.end().catch(() => {}));
  return client;
}

async function owner(at: DatabaseAddress, generation: number, holder = `uid-${generation}`): Promise<Owner> {
  const identity = { fenceName: "n/run", generation, holder, holderName: `run-${generation}` };
  const issuing = { drainMs: DRAIN_MS, nonce: `nonce of ${holder}`, issuer: "test", clock };
  return new Owner(identity, await raise(at, identity, issuing));
}

async function server(options: PostgresOptions = {}): Promise<Fenced> {
  const fenced = await startFenced(options);
  onTestFinished(() => fenced.stop());
  const admin = await fenced.connectAdmin();
  await admin.query("CREATE TABLE written (generation bigint, holder text); GRANT ALL ON written TO invoice_app");
  return fenced;
}

async function copyOf(postgres: TestPostgres, options: PostgresOptions = {}): Promise<DatabaseAddress> {
  const { version, dataDir } = postgres;
  const copy = await startPostgres({ version, copyOf: dataDir, ...options });
  onTestFinished(() => copy.remove());
  return { host: copy.host, port: copy.port, database: "postgres", user: "invoice_app", sslmode: "disable" };
}

const asAdmin = (at: DatabaseAddress): Promise<pg.Client> => connect({ ...at, user: "postgres" });

async function promote(at: DatabaseAddress): Promise<void> {
  const admin = await asAdmin(at);
  await admin.query("SELECT pg_promote()");
  await until(admin, "SELECT NOT pg_is_in_recovery()");
}

/** The owner before gets nothing in, neither by a new session nor by a heartbeat; the next one works. */
async function goesOn(at: DatabaseAddress, before: Owner, next: number): Promise<void> {
  const refusals: Failure[] = [await failure(before.session(at)), await failure(before.beat(at))];
  for (const refusal of refusals) expect(["LF001", "LF003"]).toContain(refusal.code);
  const successor = await owner(at, next, `uid-next-${next}`);
  await successor.write(await successor.session(at));
  await successor.beat(at);
  for (const refusal of [await failure(before.session(at)), await failure(before.beat(at))]) {
    expect(["LF001", "LF003"]).toContain(refusal.code);
  }
  const admin = await asAdmin(at);
  const { rows } = await admin.query("SELECT generation FROM fence.gates(1) WHERE open");
  expect(rows).toEqual([{ generation: String(next) }]);
}

describe("INV-8: another history", () => {
  test("restored to a point in time before the last raise", async () => {
    const archive = mkdtempSync(join(tmpdir(), "fencedjob-archive-"));
    onTestFinished(() => rmSync(archive, { recursive: true, force: true }));
    execFileSync("chmod", ["777", archive]);
    const settings = { archive_mode: "on", archive_command: `cp %p ${archive}/%f` };
    const fenced = await server({ settings });
    await fenced.postgres.stop("fast");
    const base = join(archive, "base");
    execFileSync("cp", ["-a", fenced.postgres.dataDir, base]);
    await fenced.postgres.start();
    await owner(fenced.address, 1);
    const admin = await fenced.connectAdmin();
    await admin.query("SELECT pg_create_restore_point('before the second')");
    const second = await owner(fenced.address, 2);
    await second.write(await second.session(fenced.address));
    await fenced.postgres.stop("fast"); // archives what it has
    const recovery = {
      restore_command: `cp ${archive}/%f %p`,
      recovery_target_name: "before the second",
      recovery_target_action: "promote",
    };
    const restored = await copyOf(
      { ...fenced.postgres, dataDir: base },
      { signals: ["recovery.signal"], settings: recovery },
    );
    await until(await asAdmin(restored), "SELECT NOT pg_is_in_recovery()");
    const { rows } = await (await asAdmin(restored)).query("SELECT generation FROM fence.job");
    expect(rows).toEqual([{ generation: "1" }]);
    expect(await failure(second.session(restored))).toMatchObject({ code: "LF003" });
    // Number 2 is new to this history; the controller goes above what it knows all the same.
    await goesOn(restored, second, 3);
  });

  test("an asynchronous replica that lacks the last raise is promoted; the primary that was left running keeps its own session, and its owner is told", async () => {
    const fenced = await server();
    await owner(fenced.address, 1);
    await fenced.postgres.stop("fast");
    const replica = await copyOf(fenced.postgres, { signals: ["standby.signal"] });
    await fenced.postgres.start();
    const second = await owner(fenced.address, 2);
    const session = await second.session(fenced.address);
    await promote(replica);
    // Its heartbeat follows the name, which leads to the replica now.
    expect(await failure(second.beat(replica))).toMatchObject({ code: "LF003", final: true });
    expect(await failure(second.session(replica))).toMatchObject({ code: "LF003" });
    await goesOn(replica, second, 3);
    // Not promised: what an abandoned primary takes is thrown away with its history, and stays out of the other one.
    await second.write(session);
    const { rows } = await (await asAdmin(replica)).query("SELECT holder FROM written");
    expect(rows).toEqual([{ holder: "uid-next-3" }]);
  });

  test("two replicas are promoted to one timeline, and so have one incarnation: each keeps to its own owner", async () => {
    const fenced = await server();
    await owner(fenced.address, 1);
    await fenced.postgres.stop("fast");
    const [a, b] = [
      await copyOf(fenced.postgres, { signals: ["standby.signal"] }),
      await copyOf(fenced.postgres, { signals: ["standby.signal"] }),
    ];
    await Promise.all([promote(a), promote(b)]);
    const second = await owner(a, 2);
    expect(await failure(second.session(b))).toMatchObject({ code: "LF003" });
    // The raise that lost its answer, tried again where the name leads to: both have it, and one holder each.
    const again = await owner(b, 2);
    expect(again.raised.incarnation).toBe(second.raised.incarnation);
    await second.beat(a);
    expect(await failure(second.session(b))).toMatchObject({ code: "LF003" });
    await goesOn(b, second, 3);
    await second.session(a);
  });

  test("a dump loaded elsewhere, and beside it in the same cluster, also under the name of the old one", async ({
    skip,
  }) => {
    const bin = "/usr/lib/postgresql/15/bin";
    if (!existsSync(join(bin, "pg_dump"))) skip("needs the pg_dump and psql of Debian's postgresql-15");
    const [fenced, elsewhere] = [await server({ version: 15 }), await server({ version: 15 })];
    const first = await owner(fenced.address, 1);
    const run = (program: string, args: string[], input = ""): string =>
      execFileSync(join(bin, program), args, { input, encoding: "utf8", stdio: ["pipe", "pipe", "pipe"] });
    const to = ({ host, port }: DatabaseAddress, database: string): string[] => [
      ...["-h", host, "-p", String(port), "-U", "postgres", database],
    ];
    const dump = run("pg_dump", to(fenced.address, "postgres"));
    for (const { address } of [fenced, elsewhere]) {
      await (await asAdmin({ ...address, database: "template1" })).query("CREATE DATABASE loaded");
      run("psql", ["-q", "-v", "ON_ERROR_STOP=1", ...to(address, "loaded")], dump);
      await (await asAdmin({ ...address, database: "loaded" })).query(
        "GRANT CONNECT ON DATABASE loaded TO invoice_app",
      );
      await goesOn({ ...address, database: "loaded" }, first, 2);
    }
    await first.session(fenced.address);
    const admin = await asAdmin({ ...fenced.address, database: "template1" });
    await admin.query(
      "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname IN ('postgres', 'loaded') AND pid <> pg_backend_pid()",
    );
    await until(admin, "SELECT count(*) = 0 FROM pg_stat_activity WHERE datname IN ('postgres', 'loaded')");
    await admin.query("ALTER DATABASE postgres RENAME TO old");
    await admin.query("ALTER DATABASE loaded RENAME TO postgres");
    await goesOn(fenced.address, first, 3);
  });
});

describe("INV-7: the same history, set back: the data directory's copy is put in its place", () => {
  /** Copies the data directory, lets `then` happen, and puts the copy back, as a volume snapshot does. */
  async function setBack(fenced: Fenced, then: () => Promise<void>): Promise<void> {
    const { postgres } = fenced;
    const copy = `${postgres.dataDir}-copy`;
    await postgres.stop("fast");
    execFileSync("cp", ["-a", postgres.dataDir, copy]);
    await postgres.start();
    await then();
    await postgres.stop("immediate");
    rmSync(postgres.dataDir, { recursive: true });
    execFileSync("mv", [copy, postgres.dataDir]);
    await postgres.start();
  }

  test("under its owner: his heartbeat and the next session notice, though row, holder and incarnation are right", async () => {
    const fenced = await server();
    const first = await owner(fenced.address, 1);
    await setBack(fenced, async () => {
      await first.write(await first.session(fenced.address));
      await first.beat(fenced.address);
    });
    expect(await fenced.job("n/run").row()).toMatchObject({
      ...{ generation: 1, holder: "uid-1", presentIncarnation: first.raised.incarnation },
    });
    expect(await failure(first.session(fenced.address))).toMatchObject({ code: "LF003" });
    expect((await failure(first.beat(fenced.address))).message).toContain("was set back to an earlier state");
    await goesOn(fenced.address, first, 2);
  });

  test("to a time before his raise", async () => {
    const fenced = await server();
    await owner(fenced.address, 1);
    let second: Owner | undefined;
    await setBack(fenced, async () => {
      second = await owner(fenced.address, 2);
    });
    await goesOn(fenced.address, second as Owner, 3);
  });
});

describe("INV-1: a raise that has committed stays", () => {
  test("synchronous_commit=off is configured and the server crashes at once: what was raised is raised", async () => {
    const settings = { synchronous_commit: "off", wal_writer_delay: "10s" };
    const fenced = await server({ settings });
    const admin = await fenced.connectAdmin();
    await owner(fenced.address, 1);
    const second = await owner(fenced.address, 2);
    // Who writes to disk what nobody waits for, every ten seconds: it must not be just now.
    const { rows } = await admin.query("SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'");
    process.kill(rows[0].pid, "SIGSTOP");
    await admin.query("INSERT INTO written VALUES (0, 'lost with the crash')");
    await fenced.postgres.stop("immediate");
    await fenced.postgres.start();
    expect(await fenced.job("n/run").row()).toMatchObject({ generation: 2, holder: "uid-2" });
    // The crash was one: another commit of the same moment is gone.
    expect((await (await fenced.connectAdmin()).query("SELECT FROM written")).rowCount).toBe(0);
    await second.session(fenced.address);
    await second.beat(fenced.address);
  });

  test("the synchronous standby is gone: raise and heartbeats return, the application's commits wait as it configured", async () => {
    const fenced = await server();
    await owner(fenced.address, 1);
    const admin = await fenced.connectAdmin();
    await admin.query("ALTER SYSTEM SET synchronous_standby_names = 'gone'");
    await admin.query("SELECT pg_reload_conf()");
    await until(admin, "SELECT current_setting('synchronous_standby_names') = 'gone'");
    const second = await owner(fenced.address, 2);
    await second.beat(fenced.address);
    const session = await second.session(fenced.address);
    const waiting = second.write(session);
    waiting.catch(() => {});
    await until(admin, "SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'");
    await admin.query("ALTER SYSTEM RESET synchronous_standby_names");
    await admin.query("SELECT pg_reload_conf()");
    await waiting;
  });
});
