/** Clients that would wait for ever, or make others wait, if an answer or a byte got lost in the proxy. */
import type pg from "pg";
import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import { type Fenced, type JobOfTest, startFenced, until } from "../../testing/fenced.ts";
import { oldestAndNewest } from "../../testing/postgres.ts";
import { type ProxyOfTest, startFencedProxy } from "../../testing/proxy.ts";
import { RawClient } from "../../testing/rawclient.ts";
import { bind, copyData, copyDone, cstring, execute, FRONT, message, parse, query, sync } from "./messages.ts";

const run = (sql: string): Buffer[] => [parse("", sql), bind("", ""), execute("")];
const group = (...sqls: string[]): Buffer[] => [...sqls.flatMap(run), sync()];

describe.each(oldestAndNewest())("PostgreSQL %i", (version) => {
  let fenced: Fenced;
  let admin: pg.Client;
  const proxies: ProxyOfTest[] = [];
  let jobs = 0;

  beforeAll(async () => {
    fenced = await startFenced({ version });
    admin = await fenced.connectAdmin();
    await admin.query("CREATE TABLE w (note text); GRANT ALL ON w TO invoice_app");
  });
  afterEach(async () => {
    for (const proxy of proxies.splice(0)) await proxy.stop();
  });
  afterAll(async () => {
    await fenced.stop();
  });

  async function start(): Promise<{ job: JobOfTest; proxy: ProxyOfTest; jobId: number }> {
    const job = { ...fenced.job(`stalls-${++jobs}`), address: fenced.address };
    const proxy = await startFencedProxy(job, 1);
    proxies.push(proxy);
    return { job, proxy, jobId: (await job.row())!.jobId };
  }

  const answered = (waiting: Promise<unknown>): Promise<string> =>
    Promise.race([
      waiting.then(() => "answered"),
      new Promise<string>((resolve) => setTimeout(() => resolve("hangs"), 2_000)),
    ]);

  test("a FunctionCall whose entering fails gets its ReadyForQuery", async () => {
    const { proxy, jobId } = await start();
    const client = await RawClient.open({ port: proxy.port });
    for (const sql of ["BEGIN", "SET LOCAL lock_timeout = 100"]) await client.exchange(1, query(sql));
    const holder = await fenced.connectAdmin();
    await holder.query(`BEGIN; LOCK TABLE fence.gate_${jobId}_1 IN EXCLUSIVE MODE`);
    const call = client.exchange(1, message(FRONT.functionCall, Buffer.from([0, 0, 4, 0xd7, 0, 0, 0, 0, 0, 0])));
    const outcome = await answered(call);
    await holder.query("ROLLBACK");
    expect(outcome).toBe("answered");
  });

  test("Sync in the middle of a simple COPY is ignored, as the server does", async () => {
    const { proxy } = await start();
    const client = await RawClient.open({ port: proxy.port });
    client.send(query("COPY w (note) FROM STDIN"));
    await client.until(() => client.transcript.at(-1)?.startsWith("G") === true);
    await client.exchange(1, sync(), copyData(Buffer.from("b\n")), copyDone());
    expect(await answered(client.exchange(1, query("SELECT 1")))).toBe("answered");
  });

  test("more of a group behind an extended COPY whose Sync came first goes on", async () => {
    const { proxy } = await start();
    const client = await RawClient.open({ port: proxy.port });
    const copying = client.exchange(
      1,
      ...group("COPY w (note) FROM STDIN"),
      copyData(Buffer.from("b\n")),
      copyDone(),
      ...group("SELECT 1"),
    );
    expect(await answered(copying)).toBe("answered");
  });

  test.each(["in one packet", "while the session starts"])(
    "what a client sends behind its startup message is not lost (%s)",
    async (when) => {
      const { proxy, jobId } = await start();
      const { connect } = await import("node:net");
      const socket = connect({ host: "127.0.0.1", port: proxy.port, noDelay: true });
      const received = new Promise<string>((resolve) => {
        let text = "";
        socket.on("data", (chunk) => {
          text += chunk.toString("latin1");
          if (text.includes("4711")) resolve(text);
        });
      });
      const holder = await fenced.connectAdmin();
      await holder.query(`BEGIN; LOCK TABLE fence.gate_${jobId}_1 IN EXCLUSIVE MODE`);
      const parameters = cstring("user\0invoice_app\0database\0postgres\0");
      const startup = message(0, Buffer.concat([Buffer.from([0, 3, 0, 0]), parameters]));
      const request = query("SELECT 4711");
      socket.write(when === "in one packet" ? Buffer.concat([startup, request]) : startup);
      await until(admin, "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND mode = 'RowShareLock'");
      if (when !== "in one packet") {
        socket.write(request);
        await new Promise((resolve) => setImmediate(resolve));
      }
      await holder.query("ROLLBACK");
      expect(await answered(received)).toBe("answered");
      socket.destroy();
    },
  );

  test("… within a bound", async () => {
    const { proxy, jobId } = await start();
    const holder = await fenced.connectAdmin();
    await holder.query(`BEGIN; LOCK TABLE fence.gate_${jobId}_1 IN EXCLUSIVE MODE`);
    const opening = RawClient.open({ port: proxy.port });
    await until(admin, "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND mode = 'RowShareLock'");
    const { connect } = await import("node:net");
    const socket = connect({ host: "127.0.0.1", port: proxy.port, noDelay: true });
    const parameters = cstring("user\0invoice_app\0database\0postgres\0");
    socket.write(message(0, Buffer.concat([Buffer.from([0, 3, 0, 0]), parameters])));
    socket.write(Buffer.alloc(200_000));
    const refused = new Promise<void>((resolve) =>
      socket.on("data", (chunk) => {
        if (chunk.includes("08P01")) resolve();
      }),
    );
    expect(await answered(refused)).toBe("answered");
    await holder.query("ROLLBACK");
    await (await opening).end();
    socket.destroy();
  });

  test("one client's long text does not stop the others: work grows with its length, not with its square", async () => {
    const { proxy } = await start();
    const client = await proxy.connect();
    let longestMs = 0;
    let lastMs = performance.now();
    const timer = setInterval(() => {
      longestMs = Math.max(longestMs, performance.now() - lastMs);
      lastMs = performance.now();
    }, 5);
    await client.query("COMMIT;SELECT 1;".repeat(10_000)); // 160 KB: about 1.2 s
    clearInterval(timer);
    expect(longestMs).toBeLessThan(500);
  });
});
