import { readFileSync } from "node:fs";
import { connect, createServer } from "node:net";
import pg from "pg";
import { expect, test } from "vitest";
import { freePort, postgresVersions, startPostgres } from "./postgres.ts";

test.each(postgresVersions().found)("PostgreSQL %i starts, stops and starts again with its data", async (version) => {
  const server = await startPostgres({ version });
  try {
    const client = new pg.Client(server.url());
    await client.connect();
    await client.query("CREATE TABLE kept (i int)");
    await client.end();
    await server.stop("fast");
    await server.start();
    const again = new pg.Client(server.url());
    await again.connect();
    const { rows } = await again.query(
      "SELECT count(*)::int AS n, current_setting('server_version_num')::int AS v FROM kept",
    );
    expect(rows[0].n).toBe(0);
    expect(Math.floor(rows[0].v / 10000)).toBe(version);
    await again.end();
  } finally {
    await server.remove();
  }
});

test("whoever is on its port instead is not taken for it", async () => {
  const [server, other] = [await startPostgres(), await startPostgres()];
  await server.stop();
  const stranger = createServer((socket) => void socket.pipe(connect(other.port, other.host)).pipe(socket));
  try {
    await new Promise<void>((resolve) => stranger.listen(server.port, server.host, resolve));
    await expect(server.start()).rejects.toThrow(/Address already in use/);
  } finally {
    stranger.close();
    for (const one of [server, other]) await one.remove();
  }
});

test("a free port is none that the kernel gives to whoever asks for any", async () => {
  const range = readFileSync("/proc/sys/net/ipv4/ip_local_port_range", "utf8").trim().split(/\s+/);
  expect(await freePort()).toBeLessThan(Number(range[0]));
});
