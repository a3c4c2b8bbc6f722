"""Scenarios of psycopg 3; see scenarios.md."""
import asyncio
import ctypes
import threading

import psycopg
from psycopg.rows import dict_row

from scenario import Scenarios, dsn

s = Scenarios(lambda e: f"{getattr(e, 'sqlstate', None)} {str(e).splitlines()[0] if str(e) else ''}")


def connect(**more):
    return psycopg.connect(dsn(), **more)


@s
def transaction_context_commits_and_rolls_back():
    with connect() as c:
        c.execute("CREATE TABLE t (i int primary key, v text)")
        c.execute("INSERT INTO t VALUES (%s, %s)", (1, "a"))
    try:
        with connect() as c:
            c.execute("INSERT INTO t VALUES (2, 'never')")
            raise KeyError
    except KeyError:
        pass
    with connect() as c:
        return c.execute("SELECT * FROM t").fetchall()


@s
def nested_transactions_are_savepoints():
    with connect() as c:
        with c.transaction():
            c.execute("INSERT INTO t VALUES (3, 'outer')")
            try:
                with c.transaction():
                    c.execute("INSERT INTO t VALUES (1, 'dup')")
            except psycopg.errors.UniqueViolation as e:
                found = e.diag.constraint_name
            with c.transaction(force_rollback=True):
                c.execute("INSERT INTO t VALUES (4, 'forced')")
        return found, c.execute("SELECT i FROM t ORDER BY i").fetchall()


@s
def autocommit_and_status():
    with connect(autocommit=True) as c:
        c.execute("INSERT INTO t VALUES (5, 'auto')")
        return c.info.transaction_status.name


@s
def isolation_levels():
    out = []
    for level in psycopg.IsolationLevel:
        with connect() as c:
            c.isolation_level = level
            c.execute("UPDATE t SET v = v")
            out.append(c.execute("SHOW transaction_isolation").fetchone())
    return out


@s
def read_only_refuses():
    with connect() as c:
        c.read_only = True
        c.execute("INSERT INTO t VALUES (6, 'ro')")


@s
def deferrable():
    with connect() as c:
        c.read_only = c.deferrable = True
        c.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
        return c.execute("SELECT count(*) FROM t").fetchone()


@s
def error_aborts_the_block():
    with connect() as c:
        out = []
        for sql in ("SELECT 1/0", "SELECT 1"):
            try:
                c.execute(sql)
            except psycopg.Error as e:
                out.append((type(e).__name__, e.sqlstate, c.info.transaction_status.name))
        c.rollback()
        return out, c.execute("SELECT 'fine'").fetchone()


@s
def error_position_with_parameters():
    with connect() as c:
        try:
            c.execute("SELECT %s, nosuch", (1,))
        except psycopg.Error as e:
            return e.sqlstate, e.diag.statement_position, e.diag.message_primary


@s
def prepared_automatically_and_by_hand():
    with connect(prepare_threshold=2) as c:
        for i in range(6):
            c.execute("SELECT %s::int + 1", (i,))
        c.execute("SELECT %s::text", ("x",), prepare=True)
        return c.execute("SELECT count(*) FROM pg_prepared_statements WHERE name LIKE '\\_pg3%%'").fetchone()


@s
def prepared_statement_survives_ddl():
    with connect(prepare_threshold=0, autocommit=True) as c:
        c.execute("CREATE TABLE p (a int)")
        c.execute("SELECT * FROM p").fetchall()
        c.execute("ALTER TABLE p ADD b int DEFAULT 7")
        c.execute("INSERT INTO p VALUES (1)")
        return c.execute("SELECT * FROM p").fetchall()


@s
def pipeline_of_writes():
    with connect() as c:
        with c.pipeline():
            for i in range(20, 40):
                c.execute("INSERT INTO t VALUES (%s, 'pipe')", (i,))
            cur = c.execute("SELECT count(*) FROM t WHERE v = 'pipe'")
            return cur.fetchone()


@s
def pipeline_that_fails_in_the_middle():
    try:
        with connect() as c:
            with c.pipeline() as p:
                c.execute("INSERT INTO t VALUES (50, 'x')")
                c.execute("INSERT INTO t VALUES (1, 'dup')")
                c.execute("INSERT INTO t VALUES (51, 'y')")
                p.sync()
    except psycopg.Error as e:
        with connect() as c:
            return type(e).__name__, e.sqlstate, c.execute("SELECT count(*) FROM t WHERE i IN (50, 51)").fetchone()


@s
def pipeline_in_autocommit():
    with connect(autocommit=True) as c:
        with c.pipeline() as p:
            c.execute("INSERT INTO t VALUES (60, 'a')")
            p.sync()
            c.execute("INSERT INTO t VALUES (61, 'b')")
        return c.execute("SELECT i FROM t WHERE i IN (60, 61) ORDER BY i").fetchall()


@s
def executemany_with_returning():
    with connect() as c, c.cursor() as cur:
        cur.executemany("INSERT INTO t VALUES (%s, %s) RETURNING i", [(i, "m") for i in range(70, 73)], returning=True)
        got = [cur.fetchone()]
        while cur.nextset():
            got.append(cur.fetchone())
        return got


@s
def server_cursor():
    with connect() as c, c.cursor(name="named", scrollable=True) as cur:
        cur.execute("SELECT generate_series(1, 500)")
        first = cur.fetchmany(5)
        cur.scroll(100)
        return first, cur.fetchone(), len(cur.fetchall())


@s
def stream_row_by_row():
    with connect() as c, c.cursor() as cur:
        return sum(row[0] for row in cur.stream("SELECT generate_series(1, %s)", (1000,)))


@s
def copy_both_ways():
    with connect() as c, c.cursor() as cur:
        with cur.copy("COPY t FROM STDIN") as copy:
            copy.write_row((200, "copied"))
            copy.write("201\t\\N\n")
        with cur.copy("COPY (SELECT * FROM t WHERE i >= 200 ORDER BY i) TO STDOUT") as copy:
            return list(copy.rows())


@s
def binary_copy():
    with connect() as c, c.cursor() as cur:
        with cur.copy("COPY t FROM STDIN (FORMAT BINARY)") as copy:
            copy.set_types(["int4", "text"])
            for i in range(210, 214):
                copy.write_row((i, "bin"))
        return cur.execute("SELECT count(*) FROM t WHERE v = 'bin'").fetchone()


@s
def copy_ended_by_the_client():
    with connect() as c:
        try:
            with c.cursor().copy("COPY t FROM STDIN") as copy:
                copy.write_row((220, "no"))
                raise KeyError("stop")
        except KeyError:
            pass
        status = c.info.transaction_status.name
        c.rollback()
        return status, c.execute("SELECT count(*) FROM t WHERE i = 220").fetchone()


@s
def cancel():
    with connect() as c:
        threading.Timer(0.3, c.cancel).start()
        try:
            c.execute("SELECT pg_sleep(20)")
        except psycopg.errors.QueryCanceled as e:
            c.rollback()
            return e.sqlstate, c.execute("SELECT 'alive'").fetchone()


@s
def notifications():
    with connect(autocommit=True) as c, connect(autocommit=True) as other:
        c.execute("LISTEN ch")
        other.execute("SELECT pg_notify('ch', 'payload')")
        for n in c.notifies():
            return n.channel, n.payload


@s
def binary_results_and_types():
    with connect() as c, c.cursor(binary=True, row_factory=dict_row) as cur:
        return cur.execute("SELECT 1.50::numeric AS n, '{1,NULL}'::int[] AS a, '\\x00ff'::bytea AS b, date '2026-11-29' AS d, int4range(1, 5) AS r, '{\"a\":1}'::jsonb AS j").fetchall()


@s
def asynchronous():
    async def run():
        async with await psycopg.AsyncConnection.connect(dsn()) as c:
            await c.execute("INSERT INTO t VALUES (300, 'async')")
            return await (await c.execute("SELECT v FROM t WHERE i = 300")).fetchone()
    return asyncio.run(run())


@s
def two_phase_commit():
    with connect() as c:
        c.tpc_begin("one")
        c.execute("INSERT INTO t VALUES (400, 'tpc')")
        c.tpc_prepare()
        c.tpc_commit()
        return c.execute("SELECT count(*) FROM t WHERE i = 400").fetchone()


@s
def procedure_that_commits():
    with connect(autocommit=True) as c:
        c.execute("CREATE PROCEDURE steps(n int) LANGUAGE plpgsql AS $$ BEGIN INSERT INTO t VALUES (n, 'p'); COMMIT; INSERT INTO t VALUES (n + 1, 'p'); ROLLBACK; END $$")
        c.execute("CALL steps(%s)", (500,))
        c.execute("CALL steps(%s)", (510,), prepare=True)
        return c.execute("SELECT i FROM t WHERE i >= 500 ORDER BY i").fetchall()


@s
def every_sslmode():
    def attempt(sslmode):
        try:
            with connect(sslmode=sslmode) as c:
                return sslmode, "TLS" if c.pgconn.ssl_in_use else "plain", c.execute("SELECT 1").fetchone()
        except psycopg.OperationalError:
            return sslmode, "refused"
    return [attempt(m) for m in ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")]


@s
def protocol_version():
    with connect() as c:
        # libpq 18 names it in full; psycopg does not ask for it yet.
        libpq = ctypes.CDLL("libpq.so.5")
        if not hasattr(libpq, "PQfullProtocolVersion"):
            return c.pgconn.protocol_version
        libpq.PQfullProtocolVersion.argtypes = [ctypes.c_void_p]
        return libpq.PQfullProtocolVersion(ctypes.cast(c.pgconn._pgconn_ptr, ctypes.c_void_p))


@s
def a_wrong_authority():
    try:
        with connect(sslmode="verify-ca", sslrootcert="/etc/ssl/certs/ca-certificates.crt"):
            return "connects"
    except psycopg.OperationalError as e:
        return "refused", "certificate verify failed" in str(e)


def stale_block():
    c = connect()
    c.execute("CREATE TABLE IF NOT EXISTS stale (i int)")
    c.commit()
    idle = connect()
    idle.execute("SELECT 1")
    idle.commit()
    c.execute("INSERT INTO stale VALUES (1)")
    s.raise_fence()
    s.run("commit of a stale generation", lambda: (c.commit(), "committed")[1])
    s.run("write on an idle stale session", lambda: (idle.execute("INSERT INTO stale VALUES (2)"), idle.commit(), "committed")[2])
    s.run("new connection of a stale generation", lambda: (connect(), "committed")[1])


s.main(stale_block)
