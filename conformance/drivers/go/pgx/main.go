// Scenarios of pgx; see ../../scenarios.md.
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"strings"
	"time"

	. "fencedjob.dev/conformance/scenario"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

var ctx = context.Background()

func open() *pgx.Conn {
	c, err := pgx.Connect(ctx, DSN())
	Must(err)
	return c
}

func rows(c *pgx.Conn, sql string, args ...any) (any, error) {
	r, err := c.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(r, func(row pgx.CollectableRow) ([]any, error) { return row.Values() })
}

func main() {
	if IsStale() {
		stale()
		return
	}
	c := open()
	Run("transactions commit and roll back", func() (any, error) {
		_, err := c.Exec(ctx, "CREATE TABLE t (i int primary key, v text)")
		Must(err)
		Must(pgx.BeginFunc(ctx, c, func(tx pgx.Tx) error { _, err := tx.Exec(ctx, "INSERT INTO t VALUES ($1, $2)", 1, "a"); return err }))
		failed := pgx.BeginFunc(ctx, c, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "INSERT INTO t VALUES (2, 'never')")
			Must(err)
			return errors.New("stop")
		})
		all, err := rows(c, "SELECT * FROM t")
		return []any{Text(failed), all}, err
	})
	for name, mode := range map[string]pgx.QueryExecMode{"cache statement": pgx.QueryExecModeCacheStatement, "cache describe": pgx.QueryExecModeCacheDescribe, "describe exec": pgx.QueryExecModeDescribeExec, "exec": pgx.QueryExecModeExec, "simple": pgx.QueryExecModeSimpleProtocol} {
		Run("write and read in mode "+name, func() (any, error) {
			tag, err := c.Exec(ctx, "INSERT INTO t VALUES ($1, $2) ON CONFLICT (i) DO UPDATE SET v = excluded.v", mode, 10, name)
			if err != nil {
				return nil, err
			}
			all, err := rows(c, "SELECT v FROM t WHERE i = $1", mode, 10)
			return []any{tag.String(), all}, err
		})
		Run("CALL that commits in mode "+name, func() (any, error) {
			_, err := c.Exec(ctx, "CREATE OR REPLACE PROCEDURE steps(n int) LANGUAGE plpgsql AS $$ BEGIN DELETE FROM t WHERE v = 'p'; INSERT INTO t VALUES (n, 'p'); COMMIT; INSERT INTO t VALUES (n + 1, 'p'); ROLLBACK; END $$")
			Must(err)
			if _, err = c.Exec(ctx, "CALL steps($1)", mode, 500); err != nil {
				return nil, err
			}
			return rows(c, "SELECT i FROM t WHERE v = 'p'")
		})
		Run("an error and its position in mode "+name, func() (any, error) {
			_, err := c.Exec(ctx, "SELECT $1::int,  nosuch", mode, 1)
			var e *pgconn.PgError
			if !errors.As(err, &e) {
				return nil, err
			}
			return []any{e.Code, e.Position, e.Message}, nil
		})
	}
	Run("isolation and access modes", func() (any, error) {
		var out []any
		for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
			tx, err := c.BeginTx(ctx, pgx.TxOptions{IsoLevel: level})
			Must(err)
			var shown string
			Must(tx.QueryRow(ctx, "SHOW transaction_isolation").Scan(&shown))
			_, err = tx.Exec(ctx, "UPDATE t SET v = v")
			Must(err)
			Must(tx.Commit(ctx))
			out = append(out, shown)
		}
		tx, err := c.BeginTx(ctx, pgx.TxOptions{AccessMode: pgx.ReadOnly, IsoLevel: pgx.Serializable, DeferrableMode: pgx.Deferrable})
		Must(err)
		_, err = tx.Exec(ctx, "INSERT INTO t VALUES (20, 'ro')")
		Must(tx.Rollback(ctx))
		return append(out, Text(err)), nil
	})
	Run("nested transactions", func() (any, error) {
		tx, err := c.Begin(ctx)
		Must(err)
		inner, err := tx.Begin(ctx)
		Must(err)
		_, dup := inner.Exec(ctx, "INSERT INTO t VALUES (1, 'dup')")
		Must(inner.Rollback(ctx))
		_, err = tx.Exec(ctx, "INSERT INTO t VALUES (30, 'outer')")
		Must(err)
		return Text(dup), tx.Commit(ctx)
	})
	Run("commit of an aborted block is an error", func() (any, error) {
		tx, err := c.Begin(ctx)
		Must(err)
		_, _ = tx.Exec(ctx, "SELECT 1/0")
		return Text(tx.Commit(ctx)), nil
	})
	Run("a batch", func() (any, error) {
		b := &pgx.Batch{}
		for i := range 50 {
			b.Queue("INSERT INTO t VALUES ($1, 'batch')", 100+i)
		}
		b.Queue("SELECT count(*) FROM t WHERE v = 'batch'")
		r := c.SendBatch(ctx, b)
		for range 50 {
			_, err := r.Exec()
			Must(err)
		}
		var n int
		Must(r.QueryRow().Scan(&n))
		return n, r.Close()
	})
	Run("a batch that fails keeps nothing", func() (any, error) {
		b := &pgx.Batch{}
		b.Queue("INSERT INTO t VALUES (200, 'bad')")
		b.Queue("INSERT INTO t VALUES (1, 'dup')")
		b.Queue("INSERT INTO t VALUES (201, 'bad')")
		failed := c.SendBatch(ctx, b).Close()
		n, err := rows(c, "SELECT count(*) FROM t WHERE v = 'bad'")
		return []any{Text(failed), n}, err
	})
	Run("a pipeline with several syncs", func() (any, error) {
		p := c.PgConn().StartPipeline(ctx)
		p.SendQueryParams("INSERT INTO t VALUES (300, 'pipe')", nil, nil, nil, nil)
		Must(p.Sync())
		p.SendQueryParams("SELECT 1/0", nil, nil, nil, nil)
		p.SendQueryParams("INSERT INTO t VALUES (301, 'pipe')", nil, nil, nil, nil)
		Must(p.Sync())
		p.SendQueryParams("INSERT INTO t VALUES (302, 'pipe')", nil, nil, nil, nil)
		Must(p.Sync())
		var seen []string
		for {
			result, err := p.GetResults()
			if err != nil {
				seen = append(seen, err.Error())
				continue
			}
			switch r := result.(type) {
			case *pgconn.ResultReader:
				tag, err := r.Close()
				seen = append(seen, tag.String()+" "+Text(err))
			case *pgconn.PipelineSync:
				seen = append(seen, "sync")
			}
			if result == nil {
				break
			}
		}
		Must(p.Close())
		all, err := rows(c, "SELECT i FROM t WHERE v = 'pipe' ORDER BY i")
		return []any{seen, all}, err
	})
	Run("COPY in and out", func() (any, error) {
		n, err := c.CopyFrom(ctx, pgx.Identifier{"t"}, []string{"i", "v"}, pgx.CopyFromSlice(5, func(i int) ([]any, error) { return []any{400 + i, "copy"}, nil }))
		Must(err)
		var out bytes.Buffer
		tag, err := c.PgConn().CopyTo(ctx, &out, "COPY (SELECT * FROM t WHERE v = 'copy' ORDER BY i) TO STDOUT")
		Must(err)
		_, bad := c.PgConn().CopyFrom(ctx, strings.NewReader("410\tx\nbad\n"), "COPY t FROM STDIN")
		return []any{n, tag.String(), out.String(), Text(bad)}, nil
	})
	Run("COPY that the client ends with an error", func() (any, error) {
		_, err := c.CopyFrom(ctx, pgx.Identifier{"t"}, []string{"i", "v"}, pgx.CopyFromSlice(5, func(i int) ([]any, error) {
			if i == 3 {
				return nil, errors.New("enough")
			}
			return []any{420 + i, "half"}, nil
		}))
		n, _ := rows(c, "SELECT count(*) FROM t WHERE v = 'half'")
		return []any{Text(err), n}, nil
	})
	Run("cancel by request", func() (any, error) {
		d := open()
		defer d.Close(ctx)
		time.AfterFunc(300*time.Millisecond, func() { _ = d.PgConn().CancelRequest(ctx) })
		_, err := d.Exec(ctx, "SELECT pg_sleep(20)")
		alive, _ := rows(d, "SELECT 'alive'")
		return []any{Text(err), alive}, nil
	})
	Run("a deadline closes the connection", func() (any, error) {
		d := open()
		late, stop := context.WithTimeout(ctx, 200*time.Millisecond)
		defer stop()
		_, err := d.Exec(late, "SELECT pg_sleep(20)")
		return []any{errors.Is(err, context.DeadlineExceeded), d.IsClosed()}, nil
	})
	Run("LISTEN and NOTIFY", func() (any, error) {
		_, err := c.Exec(ctx, "LISTEN ch")
		Must(err)
		d := open()
		defer d.Close(ctx)
		_, err = d.Exec(ctx, "SELECT pg_notify('ch', 'payload')")
		Must(err)
		soon, stop := context.WithTimeout(ctx, 5*time.Second)
		defer stop()
		n, err := c.WaitForNotification(soon)
		if err != nil {
			return nil, err
		}
		return []any{n.Channel, n.Payload}, nil
	})
	Run("large objects", func() (any, error) {
		tx, err := c.Begin(ctx)
		Must(err)
		lo := tx.LargeObjects()
		id, err := lo.Create(ctx, 0)
		Must(err)
		o, err := lo.Open(ctx, id, pgx.LargeObjectModeRead|pgx.LargeObjectModeWrite)
		Must(err)
		_, err = o.Write([]byte("hello large"))
		Must(err)
		_, err = o.Seek(6, 0)
		Must(err)
		text := make([]byte, 5)
		_, err = o.Read(text)
		Must(err)
		Must(lo.Unlink(ctx, id))
		return string(text), tx.Commit(ctx)
	})
	Run("a prepared statement by name, after DDL", func() (any, error) {
		_, err := c.Prepare(ctx, "named", "SELECT * FROM t WHERE i = $1")
		Must(err)
		before, err := rows(c, "named", 1)
		Must(err)
		_, err = c.Exec(ctx, "ALTER TABLE t ADD extra int")
		Must(err)
		after, failed := rows(c, "named", 1)
		Must(c.Deallocate(ctx, "named"))
		return []any{before, after, Text(failed)}, nil
	})
	Run("a pool of connections", func() (any, error) {
		pool, err := pgxpool.New(ctx, DSN())
		Must(err)
		defer pool.Close()
		done := make(chan int)
		for i := range 20 {
			go func() {
				var n int
				Must(pool.QueryRow(ctx, "SELECT $1::int", i).Scan(&n))
				done <- n
			}()
		}
		sum := 0
		for range 20 {
			sum += <-done
		}
		return sum, nil
	})
	Run("every sslmode", func() (any, error) {
		var out []string
		for _, mode := range []string{"disable", "allow", "prefer", "require", "verify-ca", "verify-full"} {
			d, err := pgx.Connect(ctx, DSN()+" sslmode="+mode)
			if err != nil {
				out = append(out, mode+" refused")
				continue
			}
			_, isTLS := d.PgConn().Conn().(*tls.Conn)
			out = append(out, mode+map[bool]string{true: " TLS", false: " plain"}[isTLS])
			_ = d.Close(ctx)
		}
		return out, nil
	})
	Run("target_session_attrs", func() (any, error) {
		var out []string
		for _, attribute := range []string{"any", "read-write", "read-only", "primary", "standby", "prefer-standby"} {
			d, err := pgx.Connect(ctx, DSN()+" target_session_attrs="+attribute)
			if err == nil {
				_ = d.Close(ctx)
			}
			out = append(out, attribute+" "+map[bool]string{true: "connects", false: "refused"}[err == nil])
		}
		return out, nil
	})
	Run("types in binary", func() (any, error) {
		return rows(c, `SELECT 1.5::float8, '{1,2}'::int[], '\x00ff'::bytea, true, '{"a":1}'::jsonb, '00000000-0000-0000-0000-000000000001'::uuid::text, NULL`)
	})
}

func stale() {
	c, idle := open(), open()
	_, err := c.Exec(ctx, "CREATE TABLE IF NOT EXISTS stale (i int)")
	Must(err)
	_, err = idle.Exec(ctx, "SELECT 1")
	Must(err)
	tx, err := c.Begin(ctx)
	Must(err)
	_, err = tx.Exec(ctx, "INSERT INTO stale VALUES (1)")
	Must(err)
	RaiseFence()
	Run("commit of a stale generation", func() (any, error) { return "committed", tx.Commit(ctx) })
	Run("write on an idle stale session", func() (any, error) { _, err := idle.Exec(ctx, "INSERT INTO stale VALUES (2)"); return "committed", err })
	Run("new connection of a stale generation", func() (any, error) { _, err := pgx.Connect(ctx, DSN()); return "committed", err })
}
