import pg from "pg";
import { expect, test } from "vitest";
import { postgresVersions, startPostgres } from "./postgres.ts";

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
