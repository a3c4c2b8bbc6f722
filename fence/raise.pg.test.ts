import { expect, test } from "vitest";
import { startFenced } from "../testing/fenced.ts";
import { postgresVersions } from "../testing/postgres.ts";

for (const version of postgresVersions().found) {
  test(`smoke on ${version}`, async () => {
    const fenced = await startFenced({ version });
    const r = await fenced.raise(1);
    console.log(r);
    const s = await fenced.admit(r.jobId, 1);
    const r2 = await fenced.raise(2);
    console.log(r2);
    const row = await fenced.row();
    console.log(row);
    expect(r2.sessionsEnded).toBe(1);
    await fenced.stop();
    void s;
  });
}
