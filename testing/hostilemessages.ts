/**
 * Streams of a client's messages that are legal, nearly legal and not legal at all: drawn from a seed, so that they can be
 * repeated.
 */
import type { Random } from "../platform/random.ts";
import {
  bind,
  closePortal,
  closeStatement,
  copyData,
  copyDone,
  copyFail,
  cstring,
  execute,
  FRONT,
  flush,
  message,
  parse,
  query,
  sync,
  terminate,
} from "../sidecar/wire/messages.ts";

const STATEMENTS = [
  "INSERT INTO t VALUES (1)",
  "UPDATE t SET a = 1",
  "WITH w AS (DELETE FROM t) SELECT a",
  "EXPLAIN ANALYZE INSERT INTO t VALUES (2)",
  "SELECT a INTO b",
  "SELECT writes()",
  "SELECT a FROM v",
  "CREATE TABLE c (a int)",
  "SELECT 1",
  "VALUES (1)",
  "SELECT a FROM t WHERE b = '; COMMIT; '",
  "SELECT 1/0",
  "SELECT nosuch FRM",
  "BEGIN",
  "BEGIN",
  "BEGIN READ WRITE",
  "BEGIN READ ONLY",
  "START TRANSACTION ISOLATION LEVEL SERIALIZABLE, READ WRITE",
  "SET TRANSACTION READ WRITE",
  "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ",
  "SET transaction_read_only = off",
  "SELECT set_config('transaction_read_only', 'off', true)",
  "COMMIT",
  "COMMIT",
  "END",
  "ROLLBACK",
  "ABORT",
  "COMMIT AND CHAIN",
  "ROLLBACK AND CHAIN",
  "SAVEPOINT a",
  "ROLLBACK TO a",
  "RELEASE SAVEPOINT a",
  "SET default_transaction_read_only = off",
  "SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE",
  "SELECT set_config('default_transaction_read_only', 'off', false)",
  "SET default_transaction_read_only TO on",
  "RESET default_transaction_read_only",
  "RESET ALL",
  "DISCARD ALL",
  "DEALLOCATE ALL",
  "DEALLOCATE n",
  "PREPARE n AS INSERT INTO t VALUES (1)",
  "PREPARE n AS SELECT 1",
  "EXECUTE n",
  "EXECUTE n",
  "SET standard_conforming_strings = off",
  "SET standard_conforming_strings = on",
  "SELECT '\\'; COMMIT; INSERT INTO t VALUES (3); --'",
  "SELECT E'\\'; COMMIT; INSERT INTO t VALUES (3); --'",
  "SELECT $$; COMMIT; $$",
  "/* a /* nested; */ COMMIT; */ INSERT INTO t VALUES (4)",
  "-- COMMIT;\nINSERT INTO t VALUES (5)",
  "SHOW transaction_isolation",
  "SET datestyle = 'ISO'",
  "LISTEN a",
  "LOCK TABLE t",
  "CALL p()",
  "DO $$ BEGIN COMMIT; END $$",
  "VACUUM t",
  "CREATE DATABASE d",
  "PREPARE TRANSACTION 'x'",
  "COPY t FROM STDIN",
  "COPY v FROM STDIN",
  "",
  "-- nothing",
] as const;
/** What a name had better not stand for unseen. */
const TELLING = [
  "BEGIN",
  "COMMIT",
  "ROLLBACK",
  "ROLLBACK TO a",
  "SAVEPOINT a",
  "SET transaction_read_only = off",
  "DEALLOCATE ALL",
  "DISCARD ALL",
  "CALL p()",
  "COPY t FROM STDIN",
  "INSERT INTO t VALUES (6)",
] as const;
const SEPARATORS = [";", "; ", ";\n", ";--;\n", ";/*;*/", ";;"] as const;
const NAMES = ["", "", "", "n", "m", "_fencedjob_x", "é"] as const;
const LENGTHS = [0, 3, 4, 5, 6, 8, 64, 65_536, 65_537, 1 << 24, 0x7fffffff, 0xffffffff] as const;

/** Choices from a seed. */
export class Choices {
  readonly #random: Random;

  constructor(random: Random) {
    this.#random = random;
  }

  below(bound: number): number {
    return Math.floor(this.#random.unit() * bound);
  }

  of<T>(values: readonly T[]): T {
    return values[this.below(values.length)] as T;
  }

  chance(probability: number): boolean {
    return this.#random.unit() < probability;
  }
}

/** Some messages of a client that belong together, or one that does not belong. */
export function legalMessages(choices: Choices): Buffer[] {
  const sql = choices.of(STATEMENTS);
  const named = choices.of(NAMES);
  switch (choices.below(16)) {
    case 0:
    case 1:
    case 2:
      return behindGroup(choices, query(sql));
    case 3:
    case 4:
      return behindGroup(choices, query(texts(choices)));
    case 5:
    case 6:
    case 7:
      return [parse("", sql), bind("", ""), execute(""), sync()];
    case 8:
      return [parse("", sql), bind("", ""), execute("")];
    case 9:
      return choices.chance(0.5)
        ? [parse(named, sql)]
        : [parse(choices.of(["", "n", "m"]), choices.of(TELLING)), sync()];
    case 10:
      return bound(choices, named);
    case 11:
      return [message(FRONT.describe, cstring(`${choices.of(["S", "P"])}${named}`))];
    case 12:
      return [choices.chance(0.5) ? closeStatement(named) : closePortal(named)];
    case 13:
      return [choices.of([copyData(Buffer.from("1\n")), copyDone(), copyFail("no"), flush()])];
    case 14:
      return choices.chance(0.05)
        ? [terminate()]
        : [...behindGroup(choices, message(FRONT.functionCall, Buffer.alloc(10)))];
    default:
      return [sync()];
  }
}

/** A statement with a name, by way of a portal with one. */
function bound(choices: Choices, statement: string): Buffer[] {
  const portal = choices.of(NAMES);
  const rowsMax = choices.chance(0.2) ? 1 : 0;
  const executed = choices.chance(0.8) ? portal : choices.of(NAMES);
  const messages = [
    bind(portal, statement),
    message(FRONT.execute, Buffer.concat([cstring(executed), Buffer.of(0, 0, 0, rowsMax)])),
  ];
  return choices.chance(0.5) ? [...messages, sync()] : messages;
}

/** Mostly legal: a group that others have left open ends first. */
const behindGroup = (choices: Choices, bytes: Buffer): Buffer[] => (choices.chance(0.8) ? [sync(), bytes] : [bytes]);

function texts(choices: Choices): string {
  let text = "";
  for (let more = 1 + choices.below(4); more > 0; more--) text += choices.of(STATEMENTS) + choices.of(SEPARATORS);
  return text;
}

/** The messages as they are, or not quite. `probability`: of a change to a message. */
export function mutated(messages: readonly Buffer[], choices: Choices, probability: number): Buffer {
  return Buffer.concat(messages.map((bytes) => (choices.chance(probability) ? mutatedMessage(bytes, choices) : bytes)));
}

function mutatedMessage(original: Buffer, choices: Choices): Buffer {
  const bytes = Buffer.from(original);
  if (bytes.length < 5) return bytes;
  const at = choices.below(bytes.length);
  switch (choices.below(12)) {
    case 0:
    case 1:
      bytes[at] = (bytes[at] as number) ^ (1 << choices.below(8));
      return bytes;
    case 2:
    case 3:
      // Behind the header: what the message says, not where it ends.
      if (bytes.length > 5)
        bytes[5 + choices.below(bytes.length - 5)] = choices.of([0, 0x20, 0x27, 0x3b, 0x2d, 0x80, 0xff]);
      return bytes;
    case 4:
      bytes[0] = choices.of(Object.values(FRONT));
      return bytes;
    case 5:
      return Buffer.concat([bytes, bytes]);
    case 6:
      return withLength(bytes.subarray(0, Math.min(bytes.length, Math.max(5, at))));
    case 7:
      return withLength(
        Buffer.concat([
          bytes.subarray(0, Math.min(bytes.length, Math.max(5, at))),
          Buffer.from(choices.of(STATEMENTS)),
          bytes.subarray(at),
        ]),
      );
    case 8: {
      const other = choices.of(legalMessages(choices));
      return withLength(
        Buffer.concat([
          bytes.subarray(0, Math.min(bytes.length, Math.max(5, at))),
          other.subarray(choices.below(other.length)),
        ]),
      );
    }
    case 9:
      return Buffer.alloc(0);
    case 10:
      bytes.writeUInt32BE(choices.of(LENGTHS), 1);
      return bytes;
    default:
      return choices.chance(0.1) ? bytes.subarray(0, at) : bytes;
  }
}

function withLength(bytes: Buffer): Buffer {
  const whole = Buffer.from(bytes);
  whole.writeUInt32BE(whole.length - 1, 1);
  return whole;
}
