// Scenarios of lib/pq over database/sql; see ../../scenarios.md.
package main

import (
	"context"
	"database/sql"
	"errors"
	"time"

	. "fencedjob.dev/conformance/scenario"
	"github.com/lib/pq"
)

var ctx = context.Background()

func open(more string) *sql.DB {
	db, err := sql.Open("postgres", DSN()+more)
	Must(err)
	db.SetMaxOpenConns(2)
	return db
}

type queryer interface {
	QueryContext(context.Context, string, ...any) (*sql.Rows, error)
}

func rows(q queryer, text string, args ...any) (any, error) {
	r, err := q.QueryContext(ctx, text, args...)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	columns, _ := r.Columns()
	var all [][]*string
	for r.Next() {
		row := make([]*string, len(columns))
		into := make([]any, len(columns))
		for i := range row {
			into[i] = &row[i]
		}
		if err := r.Scan(into...); err != nil {
			return nil, err
		}
		all = append(all, row)
	}
	return all, r.Err()
}

func main() {
	if IsStale() {
		stale()
		return
	}
	db := open("")
	exec := func(q interface {
		ExecContext(context.Context, string, ...any) (sql.Result, error)
	}, text string, args ...any) (any, error) {
		r, err := q.ExecContext(ctx, text, args...)
		if err != nil {
			return nil, err
		}
		n, err := r.RowsAffected()
		return n, err
	}
	begin := func(o *sql.TxOptions) *sql.Tx { tx, err := db.BeginTx(ctx, o); Must(err); return tx }
	Run("transactions commit and roll back", func() (any, error) {
		_, err := exec(db, "CREATE TABLE t (i int primary key, v text)")
		Must(err)
		tx := begin(nil)
		_, err = exec(tx, "INSERT INTO t VALUES ($1, $2)", 1, "a")
		Must(err)
		Must(tx.Commit())
		tx = begin(nil)
		_, err = exec(tx, "INSERT INTO t VALUES (2, 'never')")
		Must(err)
		Must(tx.Rollback())
		return rows(db, "SELECT * FROM t")
	})
	Run("autocommit, simple and prepared", func() (any, error) {
		a, err := exec(db, "INSERT INTO t VALUES (3, 'simple')")
		Must(err)
		s, err := db.Prepare("INSERT INTO t VALUES ($1, 'prepared')")
		Must(err)
		_, err = s.Exec(4)
		Must(err)
		_, err = s.Exec(5)
		Must(err)
		return a, s.Close()
	})
	Run("binary parameters", func() (any, error) {
		b := open(" binary_parameters=yes")
		defer b.Close()
		_, err := exec(b, "INSERT INTO t VALUES ($1, $2)", 6, "binary")
		Must(err)
		return rows(b, "SELECT v FROM t WHERE i = $1", 6)
	})
	Run("several statements and result sets", func() (any, error) {
		r, err := db.Query("INSERT INTO t VALUES (7, 'multi'); SELECT count(*) FROM t; SELECT 2")
		Must(err)
		defer r.Close()
		var seen []int
		for {
			for r.Next() {
				var n int
				Must(r.Scan(&n))
				seen = append(seen, n)
			}
			if !r.NextResultSet() {
				return seen, r.Err()
			}
		}
	})
	Run("isolation levels", func() (any, error) {
		var out []any
		for _, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable} {
			tx := begin(&sql.TxOptions{Isolation: level})
			_, err := exec(tx, "UPDATE t SET v = v")
			Must(err)
			shown, err := rows(tx, "SHOW transaction_isolation")
			Must(err)
			out = append(out, shown)
			Must(tx.Commit())
		}
		return out, nil
	})
	Run("read-only refuses", func() (any, error) {
		tx := begin(&sql.TxOptions{ReadOnly: true})
		_, err := exec(tx, "INSERT INTO t VALUES (8, 'ro')")
		return Text(err), tx.Rollback()
	})
	Run("commit of an aborted block is an error", func() (any, error) {
		tx := begin(nil)
		_, err := exec(tx, "SELECT 1/0")
		return []string{Text(err), Text(tx.Commit())}, nil
	})
	Run("savepoints", func() (any, error) {
		tx := begin(nil)
		_, err := exec(tx, "SAVEPOINT a")
		Must(err)
		_, dup := exec(tx, "INSERT INTO t VALUES (1, 'dup')")
		_, err = exec(tx, "ROLLBACK TO a")
		Must(err)
		_, err = exec(tx, "INSERT INTO t VALUES (9, 'kept')")
		Must(err)
		return Text(dup), tx.Commit()
	})
	Run("COPY in", func() (any, error) {
		tx := begin(nil)
		s, err := tx.Prepare(pq.CopyIn("t", "i", "v"))
		Must(err)
		for i := range 100 {
			_, err = s.Exec(100+i, "copy")
			Must(err)
		}
		_, err = s.Exec()
		Must(err)
		Must(s.Close())
		Must(tx.Commit())
		return rows(db, "SELECT count(*) FROM t WHERE v = 'copy'")
	})
	Run("COPY with an error", func() (any, error) {
		tx := begin(nil)
		s, err := tx.Prepare(pq.CopyIn("t", "i", "v"))
		Must(err)
		_, _ = s.Exec("bad", "row")
		_, failed := s.Exec()
		_ = s.Close()
		return Text(failed), tx.Rollback()
	})
	Run("error fields and position", func() (any, error) {
		_, dup := exec(db, "INSERT INTO t VALUES (1, 'dup')")
		_, bad := exec(db, "SELECT $1::int,  nosuch", 1)
		var a, b *pq.Error
		errors.As(dup, &a)
		errors.As(bad, &b)
		return []string{string(a.Code), a.Constraint, a.Detail, string(b.Code), b.Position}, nil
	})
	Run("cancel by context", func() (any, error) {
		late, stop := context.WithTimeout(ctx, 300*time.Millisecond)
		defer stop()
		_, err := db.ExecContext(late, "SELECT pg_sleep(20)")
		alive, _ := rows(db, "SELECT 'alive'")
		return []any{Text(err), alive}, nil
	})
	Run("LISTEN and NOTIFY", func() (any, error) {
		l := pq.NewListener(DSN(), time.Second, time.Second, nil)
		defer l.Close()
		Must(l.Listen("ch"))
		_, err := exec(db, "NOTIFY ch, 'payload'")
		Must(err)
		select {
		case n := <-l.Notify:
			return []string{n.Channel, n.Extra}, nil
		case <-time.After(5 * time.Second):
			return "nothing", nil
		}
	})
	Run("large objects by functions", func() (any, error) {
		_, err := exec(db, "SELECT lo_from_bytea(7002, $1)", []byte("large"))
		Must(err)
		read, err := rows(db, "SELECT convert_from(lo_get(7002), 'UTF8')")
		Must(err)
		_, err = exec(db, "SELECT lo_unlink(7002)")
		return read, err
	})
	Run("arrays and types", func() (any, error) {
		var ints pq.Int64Array
		var raw []byte
		var when time.Time
		err := db.QueryRow(`SELECT $1::int[], '\x00ff'::bytea, timestamptz '2026-11-29 12:00Z'`, pq.Array([]int{1, 2})).Scan(&ints, &raw, &when)
		return []any{ints, raw, when.UTC().String()}, err
	})
	Run("a statement used in a transaction", func() (any, error) {
		s, err := db.Prepare("SELECT v FROM t WHERE i = $1")
		Must(err)
		defer s.Close()
		tx := begin(nil)
		var v string
		Must(tx.Stmt(s).QueryRow(1).Scan(&v))
		return v, tx.Commit()
	})
	Run("startup settings", func() (any, error) {
		b := open(" search_path=pg_catalog application_name=scenario statement_timeout=5000")
		defer b.Close()
		return rows(b, "SELECT current_setting('search_path'), current_setting('application_name'), current_setting('statement_timeout')")
	})
	Run("CALL that commits", func() (any, error) {
		_, err := exec(db, "CREATE PROCEDURE steps(n int) LANGUAGE plpgsql AS $$ BEGIN INSERT INTO t VALUES (n, 'p'); COMMIT; INSERT INTO t VALUES (n + 1, 'p'); ROLLBACK; END $$")
		Must(err)
		_, simple := exec(db, "CALL steps(500)")
		_, prepared := exec(db, "CALL steps($1)", 510)
		all, err := rows(db, "SELECT i FROM t WHERE v = 'p' ORDER BY i")
		return []any{Text(simple), Text(prepared), all}, err
	})
	Run("two-phase commit", func() (any, error) {
		tx := begin(nil)
		_, err := exec(tx, "INSERT INTO t VALUES (600, 'tpc')")
		Must(err)
		_, prepared := exec(tx, "PREPARE TRANSACTION 'one'")
		_ = tx.Rollback()
		_, committed := exec(db, "COMMIT PREPARED 'one'")
		all, err := rows(db, "SELECT count(*) FROM t WHERE i = 600")
		return []any{Text(prepared), Text(committed), all}, err
	})
	Run("a write after a server error goes on", func() (any, error) {
		_, bad := exec(db, "SELECT 1/0")
		n, err := exec(db, "UPDATE t SET v = v WHERE i = 1")
		return []any{Text(bad), n}, err
	})
}

func stale() {
	db := open("")
	_, err := db.Exec("CREATE TABLE IF NOT EXISTS stale (i int)")
	Must(err)
	idle, err := db.Conn(ctx)
	Must(err)
	_, err = idle.ExecContext(ctx, "SELECT 1")
	Must(err)
	tx, err := db.Begin()
	Must(err)
	_, err = tx.Exec("INSERT INTO stale VALUES (1)")
	Must(err)
	RaiseFence()
	Run("commit of a stale generation", func() (any, error) { return "committed", tx.Commit() })
	Run("write on an idle stale session", func() (any, error) {
		_, err := idle.ExecContext(ctx, "INSERT INTO stale VALUES (2)")
		return "committed", err
	})
	Run("new connection of a stale generation", func() (any, error) { return "committed", open("").Ping() })
}
