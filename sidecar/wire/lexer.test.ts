import { describe, expect, test } from "vitest";
import { lex, lexFirst } from "./lexer.ts";
import type { StatementKind } from "./statements.ts";

const OPTIONS = { standardStrings: true };

function kinds(sql: string, options = OPTIONS): StatementKind[] {
  const bytes = Buffer.from(sql);
  return lex(bytes, 0, bytes.length, options).statements.map((statement) => statement.kind);
}

const count = (sql: string, options = OPTIONS): number => {
  const bytes = Buffer.from(sql);
  return lex(bytes, 0, bytes.length, options).count;
};

describe("lexer: how many statements", () => {
  test.each<[string, number]>([
    ["", 0],
    [" ; ;; ", 0],
    ["-- only a comment", 0],
    ["/* a /* nested */ ; one */ ;", 0],
    ["SELECT 1", 1],
    ["SELECT 1;", 1],
    ["SELECT 1; SELECT 2", 2],
    ["SELECT ';'; SELECT 2", 2],
    ["SELECT 'it''s; one'", 1],
    ["SELECT E'\\'; one'", 1],
    ["SELECT '\\'; SELECT 2", 2],
    ["SELECT e'a' \n 'b\\'; c'; SELECT 2", 2],
    ["SELECT 'a' -- x\n 'b;'; SELECT 2", 2],
    ["SELECT U&'d\\0061t;'", 1],
    ['SELECT 1 AS "a;b"; SELECT 2', 2],
    ["SELECT $$a;b$$; SELECT $x$ $$ ; $x$", 2],
    ["SELECT $1; SELECT a$b$c; SELECT 1", 3],
    ["SELECT 1$$;$$", 1],
    ["SELECT 1a$a$; SELECT 2", 2],
    ["SELECT 1.5e-3, 0x1F, 1_000; SELECT 2", 2],
    ["CREATE FUNCTION f() RETURNS int COST 1BEGIN ATOMIC SELECT 1; END; SELECT 2", 2],
    ["CREATE RULE r AS ON INSERT TO t DO (SELECT 1; SELECT 2); SELECT 3", 2],
    ["CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT 1; SELECT CASE WHEN true THEN 1 END; END; SELECT 2", 2],
    ["CREATE OR REPLACE PROCEDURE p() BEGIN ATOMIC INSERT INTO t VALUES (1); END", 1],
    ["CREATE PROCEDURE p() BEGIN ATOMIC END; SELECT 2", 2],
    [
      "CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT CASE WHEN a THEN atomic END FROM t; SELECT 1; END; SELECT 2",
      2,
    ],
    ["BEGIN; SELECT 1; END; SELECT 2", 4],
    ["SELECT 'unterminated; SELECT 2", 1],
    ["SELECT 1 /* never ends ; SELECT 2", 1],
    ["SELECT 'ä;ö', \"ü;\"; SELECT 2", 2],
  ])("%s → %d", (sql, want) => expect(count(sql)).toBe(want));

  test("with standard_conforming_strings off a backslash hides a quote", () => {
    expect(count("SELECT '\\'; SELECT 2'", { standardStrings: false })).toBe(1);
  });

  test.each(["b", "X"])("… but not in %s'…', on a later line neither", (letter) => {
    expect(count(`SELECT ${letter}'0' -- x\n'\\'; SELECT 2 --'`, { standardStrings: false })).toBe(2);
  });
});

describe("lexer: what a statement does to transactions", () => {
  test.each<[string, StatementKind]>([
    ["INSERT INTO t VALUES (1)", "plain"],
    ["WITH x AS (DELETE FROM t RETURNING *) SELECT * FROM x", "plain"],
    ["/* hint */ -- more\n begin", "begin"],
    ["BEGIN ISOLATION LEVEL SERIALIZABLE", "begin"],
    ["START TRANSACTION READ WRITE", "begin"],
    ["COMMIT", "commit"],
    ["END WORK", "commit"],
    ["COMMIT AND CHAIN", "commit"],
    ["ABORT", "rollback"],
    ["ROLLBACK", "rollback"],
    ["ROLLBACK TO SAVEPOINT a", "rollbackTo"],
    ["rollback work to a", "rollbackTo"],
    ["SHOW transaction_isolation", "session"],
    ["SHOW ALL", "session"],
    ["SHOW transaction_read_only", "plain"],
    ['SHOW "transaction_read_only"', "plain"],
    ["SAVEPOINT a", "inBlock"],
    ["LOCK TABLE t", "inBlock"],
    ["DECLARE c CURSOR FOR SELECT 1", "inBlock"],
    ["DECLARE c CURSOR WITH HOLD FOR SELECT 1", "plain"],
    ["DECLARE c CURSOR WITH HOLD FOR SELECT now()::time without time zone", "plain"],
    ["DECLARE c CURSOR WITHOUT HOLD FOR SELECT 1", "inBlock"],
    ["DECLARE c CURSOR FOR SELECT hold FROM t", "inBlock"],
    ["PREPARE TRANSACTION 'x'", "twoPhase"],
    ["COMMIT PREPARED 'x'", "twoPhase"],
    ["ROLLBACK PREPARED 'x'", "twoPhase"],
    ["PREPARE s AS INSERT INTO t VALUES (1)", "plain"],
    ["EXECUTE s", "unknown"],
    ["SET TRANSACTION ISOLATION LEVEL SERIALIZABLE", "setTransaction"],
    ["SET LOCAL transaction_read_only = off", "setTransaction"],
    ["SET TRANSACTION SNAPSHOT '00000003-0000001B-1'", "plain"],
    ["SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY", "setDefault"],
    ["SET default_transaction_read_only TO off", "setDefault"],
    ["SET SESSION default_transaction_read_only = on", "setDefault"],
    ["SET search_path = a", "session"],
    ["LISTEN x", "session"],
    ["DISCARD ALL", "session"],
    ["NOTIFY x", "plain"],
    ["VACUUM FULL t", "noBlock"],
    ["ANALYZE t", "plain"],
    ["CREATE UNIQUE INDEX CONCURRENTLY i ON t (a)", "noBlock"],
    ["CREATE INDEX concurrently_named ON t (a)", "plain"],
    ['CREATE INDEX "concurrently" ON t (a)', "plain"],
    ["DROP INDEX CONCURRENTLY i", "noBlock"],
    ["REINDEX (VERBOSE, CONCURRENTLY) TABLE t", "noBlock"],
    ["REINDEX TABLE t", "noBlock"],
    ["CLUSTER t USING i", "noBlock"],
    ["CREATE DATABASE d", "noBlock"],
    ["ALTER SYSTEM SET work_mem = '1MB'", "noBlock"],
    ['ALTER TABLE IF EXISTS ONLY "a"."b" DETACH PARTITION c.d CONCURRENTLY', "noBlock"],
    ["CALL p()", "procedure"],
    ["DO $$BEGIN END$$", "procedure"],
  ])("%s → %s", (sql, want) => {
    const bytes = Buffer.from(sql);
    expect(kinds(sql)).toEqual([want]);
    expect(lexFirst(bytes, 0, bytes.length, OPTIONS)?.kind).toBe(want);
  });

  test.each<[string, boolean | undefined]>([
    ["BEGIN", undefined],
    ["BEGIN READ ONLY", true],
    ["BEGIN ISOLATION LEVEL READ COMMITTED", undefined],
    ["BEGIN ISOLATION LEVEL READ COMMITTED, READ WRITE", false],
    ["START TRANSACTION READ ONLY, DEFERRABLE", true],
    ["SET default_transaction_read_only = on", true],
    ["SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE", false],
    ["SET transaction_read_only TO false", false],
  ])("%s says read only: %s", (sql, want) => {
    const bytes = Buffer.from(sql);
    expect(lexFirst(bytes, 0, bytes.length, OPTIONS)?.readOnly).toBe(want);
  });

  test("AND CHAIN is told from AND NO CHAIN", () => {
    const chain = (sql: string): boolean | undefined => lexFirst(Buffer.from(sql), 0, sql.length, OPTIONS)?.chain;
    expect(chain("COMMIT AND CHAIN")).toBe(true);
    expect(chain("COMMIT AND NO CHAIN")).toBe(false);
  });
});
