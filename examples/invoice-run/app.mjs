/**
 * An invoice run as anybody would write it: it knows nothing of leases, generations or fences. PGHOST, PGPORT, PGUSER and
 * PGDATABASE say where the database is. Each invoice is one transaction; after a failure it connects anew and tries once more.
 */
import { setTimeout as sleep } from "node:timers/promises";
import pg from "pg";

const me = process.env.HOSTNAME ?? "somebody";
const workMs = Number(process.env.WORK_MS ?? 1000);

const say = (text) => console.log(`${new Date().toISOString()} ${me}: ${text}`);

async function connect() {
  const client = new pg.Client();
  client.on("error", (error) => say(`the connection broke: ${reasonOf(error)}`));
  await client.connect();
  return client;
}

function reasonOf(error) {
  return [error.message, error.detail].filter(Boolean).join(". ");
}

async function invoice(client, { customer, amount }) {
  await client.query("BEGIN");
  await client.query("INSERT INTO invoice (customer, amount, written_by) VALUES ($1, $2, $3)", [customer, amount, me]);
  say(`invoice for ${customer} written, transaction open`);
  await sleep(workMs); // the document is made here
  await client.query("COMMIT");
  say(`invoice for ${customer} committed`);
}

let client = await connect();
const { rows: due } = await client.query(
  "SELECT customer, amount FROM invoice_due d WHERE NOT EXISTS (SELECT FROM invoice i WHERE i.customer = d.customer) ORDER BY customer",
);
say(`${due.length} invoices to write`);

for (const one of due) {
  try {
    await invoice(client, one);
  } catch (error) {
    say(`COMMIT refused: ${reasonOf(error)}`);
    await client.end().catch(() => {});
    try {
      client = await connect();
      await invoice(client, one);
    } catch (second) {
      say(`next write refused: ${reasonOf(second)}`);
      process.exit(1);
    }
  }
}
await client.end();
say("run complete");
