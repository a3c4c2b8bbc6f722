/** Clients that would wait for ever, or make others wait, if an answer or a byte got lost in the proxy. */
import type pg from "pg";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { type Fenced, startFenced, until } from "../../testing/fenced.ts";
import { oldestAndNewest } from "../../testing/postgres.ts";
import { serveNewJob } from "../../testing/proxy.ts";
import { RawClient } from "../../testing/rawclient.ts";
import { group } from "../../testing/requests.ts";
import { copyData, copyDone, cstring, FRONT, message, query, sync } from "./messages.ts";

describe.each(oldestAndNewest())("PostgreSQL %i", (version) => {
  let fenced: Fenced;
  let admin: pg.Client;

  beforeAll(async () => {
    fenced = await startFenced({ version });
    admin = await fenced.connectAdmin();
    await admin.query("CREATE TABLE w (note text); GRANT ALL ON w TO invoice_app");
  });
  afterAll(() => fenced.stop());

  const answered = (waiting: Promise<unknown>): Promise<string> =>
    Promise.race([
      waiting.then(() => "answered"),
      // What hangs, hangs for ever; what is slow on a busy machine does not.
      new Promise<string>((resolve) => setTimeout(() => resolve("hangs"), 30_000).unref()),
    ]);

  test("a FunctionCall whose entering fails gets its ReadyForQuery", async () => {
    const { proxy, jobId } = await serveNewJob(fenced);
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
    const { proxy } = await serveNewJob(fenced);
    const client = await RawClient.open({ port: proxy.port });
    client.send(query("COPY w (note) FROM STDIN"));
    await client.until(() => client.transcript.at(-1)?.startsWith("G") === true);
    await client.exchange(1, sync(), copyData(Buffer.from("b\n")), copyDone());
    expect(await answered(client.exchange(1, query("SELECT 1")))).toBe("answered");
  });

  test("more of a group behind an extended COPY whose Sync came first goes on", async () => {
    const { proxy } = await serveNewJob(fenced);
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
      const { proxy, jobId } = await serveNewJob(fenced);
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
    const { proxy, jobId } = await serveNewJob(fenced);
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
});
