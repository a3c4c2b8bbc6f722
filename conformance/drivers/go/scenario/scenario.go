// Package scenario runs the scenarios of a Go driver; see ../../scenarios.md.
package scenario

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
)

// DSN is in libpq's form; both drivers read it, and PGSSLMODE and PGSSLROOTCERT by themselves.
func DSN() string {
	return fmt.Sprintf("host=%s port=%s user=%s dbname=%s password=x", os.Getenv("PGHOST"), os.Getenv("PGPORT"), os.Getenv("PGUSER"), os.Getenv("PGDATABASE"))
}

func say(line map[string]any) {
	text, _ := json.Marshal(line)
	fmt.Println(string(text))
}

func Run(name string, work func() (any, error)) {
	outcome, err := work()
	text, _ := json.Marshal(outcome)
	if err != nil {
		text = []byte(err.Error())
	}
	say(map[string]any{"scenario": name, "outcome": string(text)})
}

// RaiseFence returns when the successor has raised.
func RaiseFence() {
	say(map[string]any{"raise": true})
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
}

func IsStale() bool { return len(os.Args) > 1 && os.Args[1] == "stale" }

func Must(err error) {
	if err != nil {
		panic(err)
	}
}

func Text(err error) string {
	if err == nil {
		return "succeeded"
	}
	return err.Error()
}
