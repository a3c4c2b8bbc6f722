"""Runs the scenarios of a Python driver; see scenarios.md."""
import json
import os
import sys


def dsn():
    e = os.environ
    return f"host={e['PGHOST']} port={e['PGPORT']} user={e['PGUSER']} dbname={e['PGDATABASE']} password=x"


class Scenarios:
    def __init__(self, describe):
        self.describe = describe
        self.all = []

    def __call__(self, function):
        self.all.append(function)
        return function

    def run(self, name, function):
        try:
            outcome = str(function())
        except Exception as e:
            outcome = f"{type(e).__name__} {self.describe(e)}"
        print(json.dumps({"scenario": name, "outcome": outcome}), flush=True)

    def raise_fence(self):
        print(json.dumps({"raise": True}), flush=True)
        sys.stdin.readline()

    def main(self, stale):
        if sys.argv[1:] == ["stale"]:
            stale()
        else:
            for function in self.all:
                self.run(function.__name__.replace("_", " "), function)
