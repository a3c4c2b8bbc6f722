/** Every expected difference between direct and proxied, with its reason. One that is not here fails the run. */
import type { Explain } from "./results.ts";

interface Expected {
  readonly suite: RegExp;
  readonly check: RegExp;
  readonly reason: string;
}

const LOGIN =
  "By design: the application's user and password are not checked; the proxy logs in with the sidecar's credentials, so a login that the server would refuse succeeds.";

const TWO_PHASE =
  "By design: PREPARE TRANSACTION and COMMIT PREPARED are refused (LF021); a prepared transaction outlives its generation.";

const expected: readonly Expected[] = [
  {
    suite: /^corpus$/,
    check: /^twophase\.sql$/,
    reason: TWO_PHASE,
  },
  {
    suite: /^corpus$/,
    check: /^seenbythesession\.sql$/,
    reason:
      "By design: current_query() shows the fence in front of the text, and the read-only default that makes an unfenced write impossible is on.",
  },
  {
    suite: /^(psycopg2|psycopg 3|JDBC|postgres\.js)(, .*)?$/,
    check: /^two.phase commit$/,
    reason: TWO_PHASE,
  },
  {
    suite: /^(pgx|psycopg 3, protocol 3\.2)$/,
    check: /^(pgx\/v5\/pgconn TestConnectProtocolVersion32|protocol version)$/,
    reason:
      "By design: the proxy speaks protocol 3.2 (a key of 32 bytes) with a client that asks for it, in front of an older server too.",
  },
  {
    suite: /^(lib\/pq scenarios|postgres\.js)(, .*)?$/,
    check: /^(commit of a stale generation|write on an idle stale session)$/,
    reason:
      "The driver's limit: lib/pq (driver.ErrBadConn) and postgres.js (CONNECTION_CLOSED) give their own error for a FATAL one that ends the connection, against PostgreSQL itself as well. It is an exception, never a success, and a new connection says LF001.",
  },
  {
    suite: /^golang-migrate$/,
    check: /^postgres: a stale generation$/,
    reason:
      "The driver's limit: lib/pq, which golang-migrate's postgres driver uses, gives driver.ErrBadConn for an ended connection, against PostgreSQL itself as well. The migration has not begun, and a new connection says LF001.",
  },
  {
    suite: /^node-postgres, Unix socket$/,
    check: /^write on an idle stale session$/,
    reason:
      "The driver's limit: over a Unix socket node-postgres may notice that its write fails (EPIPE) before it has read why the session was ended, against PostgreSQL itself as well. It is an exception, never a success, and a new connection says LF001.",
  },
  {
    suite: /^ORMs$/,
    check: /^drizzle: commit of a stale generation$/,
    reason:
      "The library's limit: when COMMIT fails, Drizzle sends a ROLLBACK and throws that one's error (the connection has ended) in its place. It is an exception, never a success.",
  },
  {
    suite: /^psycopg2(, .*)?$/,
    check: /^(commit of a stale generation|write on an idle stale session)$/,
    reason:
      "The driver's limit: psycopg2 shows a FATAL error as an OperationalError without its SQLSTATE, against PostgreSQL itself as well. It is an exception, never a success.",
  },
  { suite: /^lib\/pq$/, check: /^pq TestErrorDuringStartup(ClosesConn)?$/, reason: LOGIN },
  { suite: /^lib\/pq$/, check: /^pq TestAuth(\/end_to_end(\/user=pqgounknown_password=wordpass)?)?$/, reason: LOGIN },
  { suite: /^lib\/pq scenarios$/, check: /^two-phase commit$/, reason: TWO_PHASE },
];

export const explain: Explain = (suite, check) =>
  expected.find((entry) => entry.suite.test(suite) && entry.check.test(check))?.reason ?? null;
