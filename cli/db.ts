/** `fencedjob db …`: the fence schema of a database, for administrators and for trying things out. */
import { type Command, Option } from "commander";
import { install, type Raised, raise, readFence, schemaStatus } from "../fence/client.ts";
import { closeFence } from "../fence/close.ts";
import type { DatabaseAddress } from "../fence/database.ts";
import { FenceError } from "../fence/errors.ts";
import { protect, uncovered, unprotect } from "../fence/protect.ts";
import { makeRole } from "../fence/role.ts";
import { addressFromUrl } from "../fence/url.ts";
import { systemClock } from "../platform/clock.ts";
import { systemRandom } from "../platform/random.ts";
import { byHand } from "./byhand.ts";
import { notNegative, positive } from "./numbers.ts";
import { word } from "./words.ts";

/** Exit code of a command that the database or the fence refused. */
const REFUSED = 1;
const say = (line: string): void => {
  process.stdout.write(`${line}\n`);
};

export function registerDb(program: Command): void {
  const db = program.command("db").description("the fence schema in a protected database");
  const command = (name: string, description: string): Command =>
    db.command(name).description(description).addOption(databaseUrl());

  command("install", "install or upgrade the fence schema (as an administrator)").action(
    refusable(async (options: { databaseUrl: string }) => {
      const { from, to, warnings } = await install(addressFromUrl(options.databaseUrl));
      for (const warning of warnings) say(`warning: ${warning}`);
      if (from === to) say(`The fence schema is installed already, version ${to}; rights checked.`);
      else say(`Installed the fence schema, version ${from === null ? to : `${from} → ${to}`}.`);
    }),
  );

  command("status", "what is installed, and whether this role can run a fenced application")
    .option("--job <fence name>", "also show the fence of this job", word)
    .action(
      refusable(async (options: { databaseUrl: string; job?: string }) => {
        await status(addressFromUrl(options.databaseUrl), options.job);
      }),
    );

  command("raise", "raise the fence of a job by hand: every older generation is refused from then on")
    .requiredOption("--job <fence name>", "spec.fenceName of the job, by default namespace/name", word)
    .requiredOption("--generation <number>", "the new generation, higher than the fence", positive)
    .option("--holder <identity>", "who raises it; random if absent", word)
    .option("--drain-seconds <seconds>", "how long older transactions may go on", notNegative, 2)
    .action(
      refusable(async (options: RaiseCommand) => {
        sayRaised(await raiseByHand(options), options.job);
      }),
    );

  command("close", "close the fence of a job by hand: its last generation is refused, until the next one is raised")
    .requiredOption("--job <fence name>", "spec.fenceName of the job, by default namespace/name", word)
    .option("--generation <number>", "up to this one; a higher one is somebody else's by now, and left alone", positive)
    .option("--drain-seconds <seconds>", "how long its transactions may go on", notNegative, 2)
    .action(refusable(closeByHand));

  command("role", "make the login role of a fenced application (as an administrator)")
    .requiredOption("--name <role>", "name of the role", word)
    .addOption(new Option("--password <password>", "password to set").env("FENCEDJOB_ROLE_PASSWORD").argParser(word))
    .option(
      "--read-only-default",
      "its transactions are read-only unless they say otherwise: for a pooler in session mode",
      false,
    )
    .action(
      refusable(async (options: RoleCommand) => {
        const { name, password, readOnlyDefault } = options;
        const { created } = await makeRole(addressFromUrl(options.databaseUrl), {
          name,
          readOnlyDefault,
          ...(password === undefined ? {} : { password }),
        });
        say(
          `Role "${name}" ${created ? "created" : "checked"}: it can be fenced, and a takeover can end its sessions.`,
        );
        say("Grant it what the application needs on its own tables; it must not own the schema fence.");
      }),
    );

  registerProtect(command);
}

function registerProtect(command: (name: string, description: string) => Command): void {
  command("protect", "refuse every write to these tables from outside of the fence (as their owner)")
    .argument("<table...>", "names as in SQL, with their schema; what inherits from them is protected too")
    .requiredOption("--job <fence name>", "spec.fenceName of the job, by default namespace/name", word)
    .option("--always", "also under session_replication_role = replica and for subscriptions", false)
    .action(async (tables: string[], options: { databaseUrl: string; job: string; always: boolean }) => {
      await refusable(async () => {
        const { databaseUrl, job, always } = options;
        for (const table of await protect(addressFromUrl(databaseUrl), job, tables, { always })) {
          say(`${table}: only transactions inside the fence of ${job} write to it.`);
        }
      })(options);
    });

  command("unprotect", "let everybody write to these tables again, as far as their privileges go")
    .argument("<table...>", "names as in SQL, with their schema")
    .action(async (tables: string[], options: { databaseUrl: string }) => {
      await refusable(async () => {
        const changed = await unprotect(addressFromUrl(options.databaseUrl), tables);
        for (const table of changed) say(`${table}: not protected any more.`);
        if (changed.length === 0) say("None of these tables was protected.");
      })(options);
    });

  command("uncovered", "where a write could pass by the triggers of protected tables; exit code 1 if anywhere").action(
    refusable(async (options: { databaseUrl: string }) => {
      const found = await uncovered(addressFromUrl(options.databaseUrl));
      for (const { table, job, why } of found) say(`${table} (${job}): ${why}`);
      if (found.length > 0) process.exitCode = REFUSED;
      else say("Every table that belongs to a protected one is covered.");
    }),
  );
}

function databaseUrl(): Option {
  return new Option("--database-url <url>", "postgres://user:password@host:5432/database?sslmode=require")
    .env("DATABASE_URL")
    .makeOptionMandatory();
}

async function status(address: DatabaseAddress, job: string | undefined): Promise<void> {
  const { installed, supported, problems } = await schemaStatus(address);
  if (installed === null) {
    say(`The fence schema is not installed in database "${address.database}".`);
    say("Run, as an administrator: fencedjob db install --database-url …");
    process.exitCode = REFUSED;
    return;
  }
  say(`schema      version ${installed}${installed === supported ? "" : `, this program speaks ${supported}`}`);
  say(`role        ${address.user}: ${problems.length === 0 ? "can run a fenced application" : problems.join("; ")}`);
  if (installed < supported) say("            Run, as an administrator: fencedjob db install --database-url …");
  if (installed > supported) say("            Use the fencedjob that installed it, or a newer one.");
  if (problems.length > 0 || installed !== supported) process.exitCode = REFUSED;
  if (job === undefined) return;
  const row = await readFence(address, job, { clock: systemClock });
  if (!row || row.generation === 0) {
    say(`job         ${job}: never raised in this database`);
    return;
  }
  say(
    `job         ${job}: generation ${row.generation}, holder ${row.holderName || row.holder}, raised ${row.raisedAt}`,
  );
  if (row.issuer)
    say(`issuer      ${row.issuer}: the control plane that raised it last; another one is refused (LF005)`);
  const same = row.incarnation === row.presentIncarnation;
  say(`history     ${row.presentIncarnation}${same ? "" : `; the fence was raised in ${row.incarnation} (LF003)`}`);
}

interface RoleCommand {
  readonly databaseUrl: string;
  readonly name: string;
  readonly password?: string;
  readonly readOnlyDefault: boolean;
}

interface RaiseCommand {
  readonly databaseUrl: string;
  readonly job: string;
  readonly generation: number;
  readonly holder?: string;
  readonly drainSeconds: number;
}

async function raiseByHand(options: RaiseCommand): Promise<Raised> {
  const holder = options.holder ?? systemRandom.bytes(16).toString("hex");
  return await raise(
    addressFromUrl(options.databaseUrl),
    {
      fenceName: options.job,
      generation: options.generation,
      holder,
      holderName: options.holder ?? "fencedjob db raise",
    },
    {
      drainMs: options.drainSeconds * 1000,
      nonce: systemRandom.bytes(16).toString("hex"),
      issuer: "",
      clock: systemClock,
    },
  );
}

async function closeByHand(
  options: Omit<RaiseCommand, "generation" | "holder"> & { readonly generation?: number },
): Promise<void> {
  const { databaseUrl, job: fenceName, drainSeconds, generation: highest = Number.POSITIVE_INFINITY } = options;
  const address = addressFromUrl(databaseUrl);
  const row = await readFence(address, fenceName, { clock: systemClock });
  if (!row || row.generation === 0) return say(`${fenceName}: never raised in this database, nothing to close.`);
  const { generation, holder, holderName } = row;
  if (generation > highest) {
    return say(
      `${fenceName}: generation ${generation} (${holderName}) is in force, which has closed ${highest}. It is left alone.`,
    );
  }
  const closing = { drainMs: drainSeconds * 1000, clock: systemClock };
  const { sessionsEnded, tookMs } = await closeFence(address, { fenceName, generation, holder, holderName }, closing);
  say(`${fenceName}: generation ${generation} closed in ${Math.round(tookMs)} ms, ${sessionsEnded} sessions ended.`);
}

function sayRaised(raised: Raised, job: string): void {
  const from = raised.previousGeneration ?? "none";
  say(
    `${job}: fence ${from} → ${raised.generation} in ${Math.round(raised.tookMs)} ms, ${raised.sessionsEnded} older sessions ended.`,
  );
  say(`Gate: fence.gate_${raised.jobId}_${raised.generation}   incarnation: ${raised.incarnation}`);
}

/** An expected failure is told in words, without a stack. */
function refusable<T>(run: (options: T) => Promise<void>): (options: T) => Promise<void> {
  return async (options) => {
    try {
      await run(options);
    } catch (error) {
      const lines =
        error instanceof FenceError
          ? [error.message, error.detail && `DETAIL: ${error.detail}`, `HINT:   ${byHand(error.hint)}`]
          : [error instanceof Error ? error.message : String(error)];
      for (const line of lines) if (line) process.stderr.write(`${line}\n`);
      process.exitCode = REFUSED;
    }
  };
}
