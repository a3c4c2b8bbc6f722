/** `fencedjob proxy` as a process: raises, serves, and ends with a reason when it is fenced out. */
import { type ChildProcess, spawn } from "node:child_process";
import { join } from "node:path";
import pg from "pg";
import { afterAll, beforeAll, expect, onTestFinished, test } from "vitest";
import { makeCertificates } from "../testing/certificates.ts";
import { type Fenced, failure, startFenced } from "../testing/fenced.ts";

let fenced: Fenced;
beforeAll(async () => {
  fenced = await startFenced();
});
afterAll(() => fenced.stop());

interface Running {
  readonly child: ChildProcess;
  readonly port: number;
  readonly stderr: () => string;
  readonly ended: Promise<number | null>;
}

function start(
  job: string,
  generation: string,
  ...more: string[]
): { child: ChildProcess; stderr: () => string; ended: Promise<number | null> } {
  const url = `postgres://invoice_app@127.0.0.1:${fenced.postgres.port}/postgres?sslmode=disable`;
  const args = [
    "proxy",
    "--database-url",
    url,
    "--job",
    job,
    "--generation",
    generation,
    "--listen",
    "127.0.0.1:0",
    "--drain-seconds",
    "1",
    ...more,
  ];
  const child = spawn(process.execPath, [join(import.meta.dirname, "fencedjob.ts"), ...args], {
    stdio: ["ignore", "ignore", "pipe"],
  });
  let text = "";
  child.stderr?.on("data", (chunk: Buffer) => {
    text += chunk.toString();
  });
  return { child, stderr: () => text, ended: new Promise((resolve) => child.once("close", (code) => resolve(code))) };
}

async function startListening(job: string, generation: string, ...more: string[]): Promise<Running> {
  const running = start(job, generation, ...more);
  const port = await new Promise<number>((resolve, reject) => {
    running.child.stderr?.on("data", () => {
      const found = /listening on 127\.0\.0\.1:(\d+)/.exec(running.stderr());
      if (found) resolve(Number(found[1]));
    });
    void running.ended.then((code) => reject(new Error(`ended with ${code}: ${running.stderr()}`)));
  });
  return { ...running, port };
}

async function connect(port: number): Promise<pg.Client> {
  const client = new pg.Client({ host: "127.0.0.1", port, user: "me", database: "postgres" });
  client.on("error", () => {});
  await client.connect();
  return client;
}

test("it serves until SIGTERM, and ends with 0", async () => {
  const { child, port, ended } = await startListening("cli/serves", "1");
  const client = await connect(port);
  expect((await client.query("SELECT 1 AS one")).rows).toEqual([{ one: 1 }]);
  child.kill("SIGTERM");
  expect(await ended).toBe(0);
});

test("it serves a Unix socket beside TCP, and TLS to who asks for it", async () => {
  const certificates = makeCertificates();
  onTestFinished(() => certificates.remove());
  const tls = ["--tls-cert", certificates.path("server.crt"), "--tls-key", certificates.path("server.key")];
  const listen = ["--listen", certificates.dir, "--listen", certificates.path(".s.PGSQL.7000")];
  const { child, port, stderr, ended } = await startListening("cli/places", "1", ...listen, ...tls);
  expect(stderr()).toContain(`${certificates.path(".s.PGSQL.5432")}, ${certificates.path(".s.PGSQL.7000")}`);
  for (const where of [
    { host: certificates.dir, port: 5432 },
    { host: certificates.dir, port: 7000 },
    { host: "localhost", port, ssl: { ca: certificates.pem("ca.crt") } },
  ]) {
    const client = new pg.Client({ user: "me", database: "postgres", ...where });
    await client.connect();
    await client.end();
  }
  child.kill("SIGTERM");
  expect(await ended).toBe(0);
});

test.each([
  ["--listen", "nowhere", /give host:port/],
  ["--tls-cert", "/nowhere.crt", /--tls-cert and --tls-key together/],
])("%s %s is refused before anything is done", async (option, value, want) => {
  const { ended, stderr } = start("cli/bad", "1", option, value);
  expect(await ended).toBe(1);
  expect(stderr()).toMatch(want);
});

test("a place that is taken is told before anything is raised: the generation at work goes on", async () => {
  const { child, port, ended } = await startListening("cli/taken", "1");
  const client = await connect(port);
  const second = start("cli/taken", "2", "--listen", `127.0.0.1:${port}`);
  expect(await second.ended).toBe(1);
  expect(second.stderr()).toMatch(/EADDRINUSE/);
  expect((await client.query("SELECT 1 AS one")).rows).toEqual([{ one: 1 }]);
  expect(await fenced.job("cli/taken").row()).toMatchObject({ generation: 1 });
  child.kill("SIGTERM");
  expect(await ended).toBe(0);
});

test("fenced out, it still answers an open transaction with the reason, and ends with 3", async () => {
  const { port, stderr, ended } = await startListening("cli/out", "1");
  const client = await connect(port);
  await client.query("BEGIN");
  await client.query("SELECT 1");
  await fenced.job("cli/out").raise(2);
  expect(await failure(client.query("COMMIT"))).toMatchObject({ code: "LF001" });
  expect(await ended).toBe(3);
  expect(stderr()).toMatch(/fenced out: pod invoice-run-2 raised the fence to generation 2/);
});

test("a generation that is not higher than the fence is refused at the start: 3, with the reason and what to do", async () => {
  await fenced.job("cli/late").raise(5);
  const { ended, stderr } = start("cli/late", "4");
  expect(await ended).toBe(3);
  expect(stderr()).toMatch(/LF001: .*\n.*\n.*Give a --generation above the fence's/);
});

test.each(["0", "x", "1.5"])("--generation %s is refused before anything is done", async (generation) => {
  const { ended, stderr } = start("cli/bad", generation);
  expect(await ended).toBe(1);
  expect(stderr()).toMatch(/generation/);
});
