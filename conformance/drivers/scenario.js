/** Runs the scenarios of a JavaScript driver; see scenarios.md. */
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";

const { PGHOST, PGPORT, PGUSER, PGDATABASE, PGSSLROOTCERT } = process.env;
export const address = {
  host: PGHOST,
  port: Number(PGPORT),
  user: PGUSER,
  password: "x",
  database: PGDATABASE,
  ...(PGSSLROOTCERT && { ssl: { ca: readFileSync(PGSSLROOTCERT, "utf8") } }),
};
export const url = `postgres://${PGUSER}:x@${PGHOST}:${PGPORT}/${PGDATABASE}`;
export const isStale = process.argv[2] === "stale";

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

/** Libraries wrap the driver's error, some of them twice. */
const innermost = (error) => {
  const cause = error.parent ?? error.driverError ?? error.cause;
  return cause ? innermost(cause) : error;
};

function said(error) {
  const cause = innermost(error);
  return `${error.constructor.name} ${cause.code} ${String(cause.message).split("\n")[0]}`;
}

export async function run(scenario, work) {
  let outcome;
  try {
    outcome = JSON.stringify(await work()) ?? "undefined";
  } catch (error) {
    outcome = said(error);
  }
  console.log(JSON.stringify({ scenario, outcome }));
}

export async function raiseFence() {
  console.log(JSON.stringify({ raise: true }));
  await lines.next();
}

/** Outcome of a promise that should fail. */
export async function failureOf(promise) {
  try {
    return { succeeded: await promise };
  } catch (error) {
    return said(error);
  }
}

/**
 * node-postgres tells a client without a query of its end by an event, and refuses the next query with words of its own:
 * what this returns fails with what the server said.
 */
export function hearing(client) {
  let told;
  client.on("error", (error) => {
    told ??= error;
  });
  return (promise) =>
    promise.catch((error) => {
      throw told?.code ? told : error;
    });
}

export async function main(scenarios, stale) {
  if (isStale) await stale();
  else for (const [name, work] of Object.entries(scenarios)) await run(name, work);
  process.exit(0);
}
