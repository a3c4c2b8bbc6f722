/**
 * A session that lives long does not grow: whatever it notes of names, requests and reads goes away with what it was about.
 * That one message may be of any size is hostile.test.ts's.
 */
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { expect, test } from "vitest";
import { HostileDialogue } from "../../testing/hostiledialogue.ts";
import { run } from "../../testing/requests.ts";
import { bind, closePortal, closeStatement, execute, parse, query, sync } from "./messages.ts";

const ROUNDS = 2_000;
const WINDOWS = 10;
/** Over 14,000 rounds: three bytes a message. One collected heap is up to 700 kB above another of the same things (compiled code comes and
 * goes), so the least of three is compared with the least of three. */
const GROWTH_BYTES_MAX = 1024 * 1024;

setFlagsFromString("--expose-gc");
const collect: () => void = runInNewContext("gc");

/** As drivers that never use a name twice. */
function work(dialogue: HostileDialogue, round: number): void {
  const [statement, portal] = [`s${round}`, `p${round}`];
  const messages = [
    query("BEGIN; INSERT INTO t VALUES (1)"),
    Buffer.concat([parse(statement, "COMMIT AND CHAIN"), bind(portal, statement), execute(portal), sync()]),
    Buffer.concat([...run("UPDATE t SET a = 1"), closePortal(portal), closeStatement(statement), sync()]),
    query("SELECT 1/0"),
    Buffer.concat([...run("ROLLBACK"), sync()]),
    Buffer.concat([parse(statement, "SELECT a FROM t"), sync()]),
    Buffer.concat([bind("", statement), execute(""), closeStatement(statement), sync()]),
    Buffer.concat([parse(statement, "BEGIN"), execute("nosuch"), sync()]),
    Buffer.concat([closeStatement(statement), sync()]),
    query(`SELECT a FROM v WHERE a = ${round}`),
    Buffer.concat([...run(`INSERT INTO t VALUES (${round})`), sync()]),
  ];
  for (const bytes of messages) {
    dialogue.client(bytes);
    dialogue.settle();
  }
  dialogue.heard.length = 0;
}

test("tens of thousands of messages leave nothing behind", () => {
  const dialogue = new HostileDialogue();
  const heapAfter = (from: number): number => {
    for (let round = from; round < from + ROUNDS; round++) work(dialogue, round);
    collect();
    return process.memoryUsage().heapUsed + process.memoryUsage().arrayBuffers;
  };
  const heaps = Array.from({ length: WINDOWS }, (_, window) => heapAfter(window * ROUNDS));
  const growth = Math.min(...heaps.slice(-3)) - Math.min(...heaps.slice(0, 3));
  expect(dialogue.ended).toBe(false);
  expect(dialogue.server.transactions.unfenced).toEqual([]);
  expect(growth).toBeLessThan(GROWTH_BYTES_MAX);
  console.info(`growth: ${growth} bytes over ${(WINDOWS - 3) * ROUNDS} rounds, ${dialogue.taken} messages in all`);
});
