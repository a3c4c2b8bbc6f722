# The two commands of the README: `make demo` and `make test`. Everything they need beyond Node, Go, root and the package
# registries they install or build themselves; what is slow is kept in a cache outside of this directory.
SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help demo down test check generate conformance bench-wire sim model

help:
	@echo "make demo      a paused owner cannot damage its successor's work: the story on a real cluster"
	@echo "make down      remove everything that the demo started"
	@echo "make test      run everything that can run on this machine"
	@echo "make sim SEEDS=1000   seeded histories of controllers, sidecars, API server and database, invariants checked"
	@echo "make model     the protocol in every order of its steps, with spin; each safety line removed in turn must show"
	@echo "make conformance  suites of PostgreSQL's clients, direct against through the proxy (30 minutes; needs Go and a JDK)"
	@echo "make bench-wire   pgbench direct, through PgBouncer and through the proxy, alternating (two hours; a quiet machine)"
	@echo "make check     lint, format, types and generated files only"
	@echo "make generate  write the CRD, the chart's copy of it and the references from the source"

demo: node_modules/.installed
	@npm run -s demo

down: node_modules/.installed
	@npm run -s down

test: node_modules/.installed
	@npm run -s test

sim: node_modules/.installed
	@npm run -s sim -- --seeds $(or $(SEEDS),1000)

model: node_modules/.installed
	@npm run -s model

check: node_modules/.installed
	@npm run -s check

conformance: node_modules/.installed
	@npm run -s conformance

bench-wire: node_modules/.installed
	@npm run -s bench-wire

generate: node_modules/.installed
	@npm run -s generate

node_modules/.installed: package.json package-lock.json
	@command -v npm >/dev/null || { echo "make needs Node.js ≥ 20 with npm (the Node.js that runs the project comes from npm). Install it: https://nodejs.org, or apt-get install nodejs npm. Nothing was changed."; exit 1; }
	@echo "installing npm packages (about 400 MB, with four PostgreSQL servers) …"
	@npm ci --no-audit --no-fund --loglevel=error
	@touch $@
