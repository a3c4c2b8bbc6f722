import { describe, expect, test } from "vitest";
import { planQuery, type TransactionState } from "./inject.ts";
import { lex } from "./lexer.ts";
import { FAILED, IDLE, IN_BLOCK } from "./messages.ts";

const OPTIONS = { standardStrings: true };
const idle: TransactionState = {
  status: IDLE,
  entered: false,
  readOnly: false,
  readOnlyDefault: false,
  readOnlyDefaultCommitted: false,
  readOnlyDefaultAtStart: false,
};
const pending: TransactionState = { ...idle, status: IN_BLOCK };
const entered: TransactionState = { ...pending, entered: true };
const failed: TransactionState = { ...pending, status: FAILED, entered: true };

/** The text with W where a fence of a writable transaction goes in, L where only the lock does. */
function fenced(sql: string, state: TransactionState): string {
  const bytes = Buffer.from(sql);
  const plan = planQuery(state, lex(bytes, 0, bytes.length, OPTIONS));
  if (plan.kind === "refuse") return `refused: ${plan.words}`;
  if (plan.kind === "bracket") return `[${sql}]`;
  let text = "";
  let at = 0;
  for (const { offset, writable } of plan.injections) {
    text += sql.slice(at, offset) + (writable ? "W|" : "L|");
    at = offset;
  }
  return text + sql.slice(at);
}

describe("where the fence goes into a simple query", () => {
  test.each<[string, TransactionState, string, string]>([
    ["outside of a block a statement gets it in front", idle, "INSERT", "W|INSERT"],
    ["an empty query stays as it is", idle, "-- x", "-- x"],
    ["a lone BEGIN waits for what follows", idle, "BEGIN", "BEGIN"],
    ["BEGIN among others cannot wait", idle, "BEGIN; INSERT", "W|BEGIN; INSERT"],
    ["SET and SHOW alone need none", idle, "SET a = b", "SET a = b"],
    [
      "after a COMMIT in the text a new transaction begins",
      idle,
      "INSERT; COMMIT; INSERT",
      "W|INSERT; COMMIT; W|INSERT",
    ],
    ["… also after ROLLBACK AND CHAIN", entered, "ROLLBACK AND CHAIN; INSERT", "ROLLBACK AND CHAIN; W|INSERT"],
    [
      "no escape by a default and a COMMIT",
      idle,
      "SET default_transaction_read_only=off; COMMIT; INSERT",
      "W|SET default_transaction_read_only=off; COMMIT; W|INSERT",
    ],
    ["no escape by an own READ WRITE", idle, "COMMIT; BEGIN READ WRITE; INSERT", "COMMIT; W|BEGIN READ WRITE; INSERT"],
    ["a block's first statement enters", pending, "INSERT", "W|INSERT"],
    ["… and SAVEPOINT does, so that no ROLLBACK TO gives the lock back", pending, "SAVEPOINT a", "W|SAVEPOINT a"],
    [
      "… but not SET TRANSACTION alone",
      pending,
      "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE",
      "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE",
    ],
    ["what counts as a query enters, though it needs no fence", pending, "DEALLOCATE ALL", "W|DEALLOCATE ALL"],
    ["once entered, nothing more", entered, "INSERT", "INSERT"],
    ["… but behind EXECUTE, which may have run a COMMIT", entered, "EXECUTE c; INSERT", "EXECUTE c; W|INSERT"],
    ["COMMIT and ROLLBACK go bare", pending, "COMMIT", "COMMIT"],
    ["a read-only block is entered and stays read-only", { ...pending, readOnly: true }, "SELECT", "L|SELECT"],
    ["the client's own read-only default is kept", { ...idle, readOnlyDefault: true }, "INSERT", "L|INSERT"],
    ["after ROLLBACK TO it enters again", entered, "ROLLBACK TO a; INSERT", "ROLLBACK TO a; W|INSERT"],
    ["in a failed block nothing is put in", failed, "INSERT", "INSERT"],
    ["… but what follows its ROLLBACK is entered", failed, "ROLLBACK; INSERT", "ROLLBACK; W|INSERT"],
    [
      "two-phase commit is refused anywhere",
      entered,
      "INSERT; PREPARE TRANSACTION 'x'",
      "refused: PREPARE TRANSACTION",
    ],
    ["what cannot be in a block is bracketed", idle, "VACUUM t", "[VACUUM t]"],
    ["… and so is what may commit inside", idle, "CALL p()", "[CALL p()]"],
    ["… which in a block it cannot", pending, "CALL p()", "W|CALL p()"],
    ["what needs a block is left to the server outside of one", idle, "LOCK TABLE t", "LOCK TABLE t"],
    ["… and left to the server where it refuses itself", idle, "VACUUM; SELECT", "W|VACUUM; SELECT"],
    ["… also inside a block", entered, "VACUUM", "VACUUM"],
  ])("%s", (_what, state, sql, want) => expect(fenced(sql, state)).toBe(want));
});
