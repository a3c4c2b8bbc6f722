"""Scenarios of psycopg2; see scenarios.md."""
import io
import select
import sys
import threading

import psycopg2
import psycopg2.extensions as ext
import psycopg2.extras

from scenario import Scenarios, dsn

s = Scenarios(lambda e: f"{getattr(e, 'pgcode', None)} {str(e).splitlines()[0] if str(e) else ''}")


def connect(**more):
    return psycopg2.connect(dsn(), **more)


def one(sql, *args, connection=None):
    c = connection or connect()
    with c.cursor() as cur:
        cur.execute(sql, args or None)
        return cur.fetchall() if cur.description else cur.statusmessage


@s
def commit_keeps_and_rollback_drops():
    c = connect()
    one("CREATE TABLE t (i int primary key, v text)", connection=c)
    one("INSERT INTO t VALUES (1, 'a')", connection=c)
    c.commit()
    one("INSERT INTO t VALUES (2, 'b')", connection=c)
    c.rollback()
    return one("SELECT * FROM t")


@s
def with_block_commits_or_rolls_back():
    c = connect()
    with c:
        one("INSERT INTO t VALUES (3, 'with')", connection=c)
    try:
        with c:
            one("INSERT INTO t VALUES (4, 'never')", connection=c)
            raise KeyError
    except KeyError:
        pass
    return one("SELECT i FROM t ORDER BY i")


@s
def autocommit_writes():
    c = connect()
    c.autocommit = True
    one("INSERT INTO t VALUES (5, 'auto')", connection=c)
    return c.get_transaction_status(), one("SELECT count(*) FROM t")


@s
def isolation_levels():
    out = []
    for level in (ext.ISOLATION_LEVEL_READ_COMMITTED, ext.ISOLATION_LEVEL_REPEATABLE_READ, ext.ISOLATION_LEVEL_SERIALIZABLE):
        c = connect()
        c.set_isolation_level(level)
        out.append(one("SHOW transaction_isolation", connection=c))
        one("UPDATE t SET v = v", connection=c)
        c.commit()
    return out


@s
def read_only_session_refuses():
    c = connect()
    c.set_session(readonly=True)
    return one("INSERT INTO t VALUES (6, 'ro')", connection=c)


@s
def read_only_then_writable():
    c = connect()
    c.set_session(readonly=True, autocommit=True)
    first = one("SELECT count(*) FROM t", connection=c)
    c.set_session(readonly=False)
    one("INSERT INTO t VALUES (7, 'rw')", connection=c)
    return first, one("SELECT count(*) FROM t", connection=c)


@s
def deferrable_serializable_read_only():
    c = connect()
    c.set_session(isolation_level="SERIALIZABLE", readonly=True, deferrable=True)
    return one("SELECT count(*) FROM t", connection=c)


@s
def error_then_aborted_then_rollback():
    c = connect()
    out = []
    for sql in ("SELECT 1/0", "SELECT 1"):
        try:
            one(sql, connection=c)
        except psycopg2.Error as e:
            out.append((type(e).__name__, e.pgcode, e.diag.severity))
    c.rollback()
    return out, one("SELECT 'fine'", connection=c)


@s
def unique_violation_has_its_class_and_diagnostics():
    try:
        one("INSERT INTO t VALUES (1, 'dup')")
    except psycopg2.errors.UniqueViolation as e:
        return e.diag.constraint_name, e.diag.table_name, e.diag.message_detail
    return "no error"


@s
def error_position():
    try:
        one("SELECT  nosuch FROM t")
    except psycopg2.Error as e:
        return e.pgcode, e.diag.statement_position


@s
def savepoints():
    c = connect()
    one("SAVEPOINT a", connection=c)
    try:
        one("INSERT INTO t VALUES (1, 'dup')", connection=c)
    except psycopg2.Error:
        one("ROLLBACK TO SAVEPOINT a", connection=c)
    one("INSERT INTO t VALUES (8, 'after')", connection=c)
    c.commit()
    return one("SELECT v FROM t WHERE i = 8")


@s
def named_cursor_fetches_in_parts():
    c = connect()
    cur = c.cursor("named", scrollable=True)
    cur.itersize = 7
    cur.execute("SELECT generate_series(1, 50)")
    first = cur.fetchmany(3)
    cur.scroll(10)
    return first, cur.fetchone(), sum(r[0] for r in cur)


@s
def with_hold_cursor_outlives_commit():
    c = connect()
    cur = c.cursor("held", withhold=True)
    cur.execute("SELECT generate_series(1, 5)")
    cur.fetchone()
    c.commit()
    return cur.fetchall()


@s
def executemany_and_batches():
    c = connect()
    cur = c.cursor()
    cur.executemany("INSERT INTO t VALUES (%s, %s)", [(i, "many") for i in range(100, 110)])
    psycopg2.extras.execute_batch(cur, "INSERT INTO t VALUES (%s, 'batch')", [(i,) for i in range(110, 140)], page_size=10)
    psycopg2.extras.execute_values(cur, "INSERT INTO t VALUES %s RETURNING i", [(i, "vals") for i in range(140, 145)])
    got = cur.fetchall()
    c.commit()
    return got, one("SELECT v, count(*) FROM t WHERE i >= 100 GROUP BY v ORDER BY v")


@s
def copy_in_and_out():
    c = connect()
    cur = c.cursor()
    cur.copy_from(io.StringIO("200\tcopied\n201\t\\N\n"), "t")
    c.commit()
    out = io.StringIO()
    cur.copy_expert("COPY (SELECT * FROM t WHERE i >= 200 ORDER BY i) TO STDOUT WITH CSV", out)
    return out.getvalue()


@s
def copy_with_an_error_in_the_middle():
    c = connect()
    try:
        c.cursor().copy_from(io.StringIO("300\tok\nbad\trow\n"), "t")
    except psycopg2.Error as e:
        c.rollback()
        return e.pgcode, e.diag.context, one("SELECT count(*) FROM t WHERE i = 300", connection=c)


@s
def cancel_ends_the_query_only():
    c = connect()
    timer = threading.Timer(0.3, c.cancel)
    timer.start()
    try:
        one("SELECT pg_sleep(20)", connection=c)
    except psycopg2.errors.QueryCanceled as e:
        c.rollback()
        return e.pgcode, one("SELECT 'alive'", connection=c)


@s
def listen_hears_a_notification():
    c = connect()
    c.autocommit = True
    one("LISTEN ch", connection=c)
    other = connect()
    one("NOTIFY ch, 'payload'", connection=other)
    other.commit()
    select.select([c], [], [], 5)
    c.poll()
    return [(n.channel, n.payload) for n in c.notifies]


@s
def large_objects():
    c = connect()
    lo = c.lobject(0, "wb")
    lo.write(b"hello large world")
    oid = lo.oid
    lo.close()
    c.commit()
    lo = c.lobject(oid, "rb")
    lo.seek(6)
    text = lo.read(5)
    lo.close()
    c.lobject(oid, "wb").unlink()
    c.commit()
    return text


@s
def types_arrive_as_python_values():
    return one("SELECT 1.50::numeric, '{1,NULL}'::int[], encode('\\x00ff'::bytea, 'hex'), true, date '2026-11-29', '{\"a\": 1}'::jsonb, interval '1 day', NULL")


@s
def notices_are_kept():
    c = connect()
    one("DO $$ BEGIN RAISE NOTICE 'one'; RAISE WARNING 'two'; END $$", connection=c)
    return c.notices


@s
def two_phase_commit():
    c = connect()
    c.tpc_begin(c.xid(1, "gtrid", "branch"))
    one("INSERT INTO t VALUES (400, 'tpc')", connection=c)
    c.tpc_prepare()
    c.tpc_commit()
    return one("SELECT count(*) FROM t WHERE i = 400")


@s
def asynchronous_connection():
    c = psycopg2.connect(dsn(), async_=1)
    psycopg2.extras.wait_select(c)
    cur = c.cursor()
    cur.execute("INSERT INTO t VALUES (401, 'async') RETURNING i")
    psycopg2.extras.wait_select(c)
    return cur.fetchall()


@s
def procedure_that_commits():
    c = connect()
    c.autocommit = True
    one("CREATE PROCEDURE steps() LANGUAGE plpgsql AS $$ BEGIN INSERT INTO t VALUES (500, 'p'); COMMIT; INSERT INTO t VALUES (501, 'p'); ROLLBACK; END $$", connection=c)
    one("CALL steps()", connection=c)
    return one("SELECT i FROM t WHERE i >= 500", connection=c)


def stale_block():
    c = connect()
    one("CREATE TABLE IF NOT EXISTS stale (i int)", connection=c)
    c.commit()
    idle = connect()
    one("SELECT 1", connection=idle)
    idle.commit()
    one("INSERT INTO stale VALUES (1)", connection=c)
    s.raise_fence()
    s.run("commit of a stale generation", lambda: (c.commit(), "committed")[1])
    s.run("write on an idle stale session", lambda: (one("INSERT INTO stale VALUES (2)", connection=idle), idle.commit(), "committed")[2])
    s.run("new connection of a stale generation", lambda: (connect(), "committed")[1])


s.main(stale_block)
