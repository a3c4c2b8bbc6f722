/** Standby and promotion: the same data directory as a standby, then promoted into another timeline. */
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, onTestFinished, test } from "vitest";
import { failure, startFenced, until } from "../testing/fenced.ts";
import { postgresVersions } from "../testing/postgres.ts";

describe.each(postgresVersions().found)("history on PostgreSQL %i", (version) => {
  test("LF013 on a standby; after its promotion the generation of the old history is refused (LF003) and the next one raised", async () => {
    const fenced = await startFenced({ version, settings: { hot_standby: "on" } });
    onTestFinished(() => fenced.stop());
    const { jobId, incarnation } = await fenced.raise(1);
    await fenced.admit(jobId, 1);
    await fenced.postgres.stop("fast");
    writeFileSync(join(fenced.postgres.dataDir, "standby.signal"), "");
    await fenced.postgres.start();

    expect(await failure(fenced.raise(2))).toMatchObject({ code: "LF013", final: false });
    expect(await failure(fenced.row())).toMatchObject({ code: "LF013" });
    expect(await failure(fenced.admit(jobId, 1))).toMatchObject({ code: "LF013" });

    const admin = await fenced.connectAdmin();
    await admin.query("SELECT pg_promote()");
    await until(admin, "SELECT NOT pg_is_in_recovery()");
    const row = await fenced.row();
    expect(row?.incarnation).toBe(incarnation);
    expect(row?.presentIncarnation.split("/")[1]).toBe("00000002");
    expect(await failure(fenced.admit(jobId, 1))).toMatchObject({ code: "LF003" });
    expect(await failure(fenced.raise(1))).toMatchObject({ code: "LF003", final: true });
    const raised = await fenced.raise(2);
    expect(raised.incarnation).not.toBe(incarnation);
    await fenced.admit(jobId, 2);
  });

  test("INV-1: the fence and the registered sessions survive a crash of the server as they must", async () => {
    const fenced = await startFenced({ version });
    onTestFinished(() => fenced.stop());
    const { jobId } = await fenced.raise(1);
    await fenced.admit(jobId, 1);
    await fenced.raise(2);
    await fenced.admit(jobId, 2);
    await fenced.postgres.stop("immediate");
    await fenced.postgres.start();
    expect(await fenced.row()).toMatchObject({ generation: 2 });
    const admin = await fenced.connectAdmin();
    expect((await admin.query("SELECT count(*)::int AS n FROM fence.session")).rows[0].n).toBe(0);
    await fenced.admit(jobId, 2);
    expect(await fenced.raise(3)).toMatchObject({ sessionsEnded: 1, previousGeneration: 2 });
  });
});
