// Scenarios of golang-migrate with each of its two drivers; see ../../scenarios.md.
package main

import (
	"database/sql"
	"fmt"
	"net/url"
	"os"
	"testing/fstest"

	. "fencedjob.dev/conformance/scenario"
	"github.com/golang-migrate/migrate/v4"
	_ "github.com/golang-migrate/migrate/v4/database/pgx/v5"
	_ "github.com/golang-migrate/migrate/v4/database/postgres"
	"github.com/golang-migrate/migrate/v4/source/iofs"
	_ "github.com/jackc/pgx/v5/stdlib"
)

// The third fails, and leaves what PostgreSQL leaves.
func migrations(thing string) fstest.MapFS {
	file := func(sql string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(fmt.Sprintf(sql, thing))} }
	return fstest.MapFS{
		"1_one.up.sql":     file("BEGIN; CREATE TABLE %[1]s (i int); INSERT INTO %[1]s VALUES (1), (1); COMMIT"),
		"1_one.down.sql":   file("DROP TABLE %[1]s"),
		"2_two.up.sql":     file("CREATE INDEX CONCURRENTLY %[1]s_two ON %[1]s (i)"),
		"2_two.down.sql":   file("DROP INDEX CONCURRENTLY %[1]s_two"),
		"3_three.up.sql":   file("CREATE UNIQUE INDEX CONCURRENTLY %[1]s_three ON %[1]s (i)"),
		"3_three.down.sql": file("DROP INDEX CONCURRENTLY %[1]s_three"),
	}
}

func open(driver string) (*migrate.Migrate, error) {
	files, err := iofs.New(migrations(driver+"_thing"), ".")
	Must(err)
	where := url.URL{Scheme: driver, User: url.UserPassword(os.Getenv("PGUSER"), "x"), Host: os.Getenv("PGHOST") + ":" + os.Getenv("PGPORT"), Path: os.Getenv("PGDATABASE")}
	where.RawQuery = "sslmode=disable&x-migrations-table=" + driver + "_migrations"
	return migrate.NewWithSourceInstance("iofs", files, where.String())
}

func indexes(driver string) string {
	db, err := sql.Open("pgx", DSN())
	Must(err)
	defer db.Close()
	var found string
	Must(db.QueryRow("SELECT coalesce(string_agg(indexrelid::regclass || ' ' || indisvalid, ', ' ORDER BY indexrelid::regclass::text), '') FROM pg_index WHERE indrelid = $1::regclass", driver+"_thing").Scan(&found))
	return found
}

func main() {
	drivers := []string{"pgx5", "postgres"}
	if IsStale() {
		stale(drivers)
		return
	}
	for _, driver := range drivers {
		m, err := open(driver)
		Must(err)
		where := func(err error) (any, error) {
			version, dirty, _ := m.Version()
			return []any{Text(err), version, dirty, indexes(driver)}, nil
		}
		Run(driver+": up, with a concurrent index", func() (any, error) { return where(m.Migrate(2)) })
		Run(driver+": nothing to do", func() (any, error) { return where(m.Migrate(2)) })
		Run(driver+": down and up again", func() (any, error) { return where(errorOf(m.Steps(-1), m.Steps(1))) })
		Run(driver+": a concurrent index that fails", func() (any, error) { return where(m.Up()) })
		Run(driver+": forced back, and down", func() (any, error) { return where(errorOf(m.Force(2), m.Steps(-1))) })
		_, err = m.Close()
		Must(err)
	}
}

func errorOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// Open before the successor raises, and opened after it: neither may begin the second migration.
func stale(drivers []string) {
	var opened []*migrate.Migrate
	for _, driver := range drivers {
		m, err := open(driver)
		Must(err)
		Must(m.Migrate(1))
		opened = append(opened, m)
	}
	RaiseFence()
	for i, driver := range drivers {
		Run(driver+": a stale generation", func() (any, error) { return "committed", opened[i].Migrate(2) })
		Run(driver+": a new connection of a stale generation", func() (any, error) {
			m, err := open(driver)
			if err != nil {
				return nil, err
			}
			return "committed", m.Migrate(2)
		})
	}
}
