/** Which texts may go unfenced: nothing here may call what is not known. */
import { describe, expect, test } from "vitest";
import { readFingerprint } from "./reads.ts";

const print = (sql: string, standardStrings = true): number => {
  const bytes = Buffer.from(`--;\n${sql}; INSERT`);
  return readFingerprint(bytes, 4, bytes.length - 8, standardStrings);
};

describe("plain reads", () => {
  test.each([
    "SELECT 1",
    "select 1;",
    "VALUES (1), (2)",
    "TABLE t;",
    "SELECT * FROM t WHERE id = $1 AND name = 'it''s; INSERT' -- FOR UPDATE",
    "/* a /* nested */ comment */ SELECT count(*) FROM t",
    "SELECT count (*) FILTER (WHERE a > 1), sum(x) OVER (PARTITION BY (a) ORDER BY (b)) FROM t",
    'SELECT "t"."id" FROM "t" LEFT JOIN (SELECT 1 AS a) x ON (x.a = t.id) INNER JOIN (u) USING (id)',
    "WITH x AS (SELECT 1), y AS MATERIALIZED (SELECT 2) SELECT * FROM x, y",
    "SELECT a FROM (VALUES (1)) AS v(a) WHERE a IN (1, 2) OR EXISTS (SELECT 1) GROUP BY a HAVING (count(*) > 1)",
    "SELECT substring(a FROM 1 FOR 2), extract(year FROM now()), CAST(a AS varchar(10)), a::numeric(10, 2) FROM t",
    "SELECT a FROM t UNION ALL (SELECT 1) ORDER BY 1 LIMIT (2)",
    "SELECT pg_catalog.format_type(a, NULL) FROM pg_catalog.pg_type",
    "SELECT array_agg(a ORDER BY b), ARRAY(SELECT 1), coalesce(NULL, 1e10, 1.5) FROM t",
    "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY a) FROM t",
    "SELECT 'a' \n 'b', ü FROM t",
  ])("%s", (sql) => expect(print(sql)).not.toBe(0));
});

describe("anything else", () => {
  test.each([
    "",
    ";",
    "-- nothing",
    "INSERT INTO t VALUES (1)",
    "(SELECT 1)",
    "SELECT 1; SELECT 2",
    "SELECT 1;;",
    "BEGIN",
    "EXPLAIN ANALYZE SELECT 1",
    "SELECT * INTO u FROM t",
    "SELECT * FROM t FOR UPDATE",
    "SELECT * FROM t FOR /* x */ NO KEY UPDATE",
    "SELECT * FROM t FOR SHARE",
    "SELECT * FROM t FOR KEY SHARE",
    "WITH x AS (INSERT INTO t VALUES (1) RETURNING 1) SELECT * FROM x",
    "WITH x AS (MERGE INTO t USING u ON true WHEN MATCHED THEN DO NOTHING) SELECT 1",
    // Calls that are not known, however they are written.
    "SELECT writes()",
    "SELECT writes ()",
    "SELECT writes -- \n ()",
    "SELECT writes/**/()",
    "SELECT public.count(1)",
    'SELECT "count"(1)',
    'SELECT pg_catalog."count"(1)',
    "SELECT x.pg_catalog.count(1)",
    "SELECT pg_catalog.pg_advisory_lock(1)",
    "SELECT nextval('s')",
    "SELECT set_config('a', 'b', false)",
    "SELECT count(writes(1))",
    "SELECT * FROM writes(1) AS w(a)",
    "SELECT * FROM t, LATERAL writes(a)",
    "SELECT by(1)",
    "SELECT over(1), filter(1)",
    "SELECT a, join(1) FROM t",
    "SELECT * FROM join(1)",
    "SELECT 'a' ILIKE join('b')",
    "SELECT 'a' SIMILAR TO join('b')",
    "SELECT DISTINCT ON (1) join(1)",
    "SELECT DISTINCT ON (1) filter(1)",
    "SELECT DISTINCT ON (a) over(1) FROM t",
    // Names that a function of the application could well have.
    "SELECT log('started')",
    "SELECT reverse(42)",
    "SELECT (t).writes(1)",
    // What is not read for certain.
    "SELECT E'\\'; DELETE'",
    "SELECT U&'d\\0061'",
    'SELECT U&"writes"(1)',
    "SELECT $$a$$",
    "SELECT $x$ ' $x$, writes(1)",
    "SELECT 'unterminated",
    'SELECT "unterminated',
    "SELECT /* unterminated",
    "SELECT a\0b",
    // The seat belt would be seen.
    "SELECT setting FROM pg_settings",
    'SELECT setting FROM pg_catalog."pg_settings"',
    "SELECT current_setting('transaction_read_only')",
  ])("%j", (sql) => expect(print(sql)).toBe(0));

  test("a backslash where it may hide a quote", () => {
    expect(print("SELECT '\\'")).not.toBe(0);
    expect(print("SELECT '\\', writes(), ''", false)).toBe(0);
    expect(print("SELECT 'a', 1", false)).not.toBe(0);
  });
});

test("numbers and strings do not change the fingerprint, names do", () => {
  expect(print("SELECT * FROM v WHERE a = 1 AND b = 'x'")).toBe(print("select *  from V where a = 25 and b = ''"));
  expect(print("SELECT * FROM v")).not.toBe(print("SELECT * FROM w"));
  expect(print('SELECT * FROM "v"')).toBe(print("SELECT * FROM v"));
});
