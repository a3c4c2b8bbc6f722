import { expect, test } from "vitest";
import { verdicts } from "./aims.ts";
import type { Series } from "./figures.ts";
import { picture } from "./picture.ts";
import { report } from "./report.ts";
import { compactJson, type MemoryResults, type ProfileResults, type WireResults } from "./results.ts";

const facts = {
  startedAt: "2026-11-29T20:00:00.000Z",
  machine: {
    cores: 2,
    processor: "Some CPU, 2500 MHz",
    memoryGib: 24,
    kernel: "6.1",
    node: "v24.21.0",
    postgres: "15.20",
    pgbench: "15.20",
    pgbouncer: "1.18.0",
  },
  postgresSettings: { fsync: "on" },
  scale: 10,
};

const series = (tps: number, latencyUs: number): Series => ({
  tps: [tps, tps / 2],
  latencyAverageUs: [latencyUs, latencyUs],
  latencyMedianUs: [latencyUs, latencyUs],
  latencyP99Us: [latencyUs * 3, latencyUs * 3],
  connectMs: [40, 40],
  cpuUs: [30, 30],
});

const wire: WireResults = {
  ...facts,
  seconds: 4,
  rounds: 2,
  seed: 1,
  sockets: ["tcp"],
  loadBefore: 0.1,
  skipped: [],
  cells: [
    {
      script: "select-only",
      protocol: "prepared",
      clients: 1,
      targets: {
        direct: series(10_000, 100),
        pgbouncer: series(8_000, 130),
        pipe: series(7_000, 140),
        unfenced: series(7_200, 140),
        fenced: series(7_000, 155),
      },
    },
    {
      script: "tpcb-like",
      protocol: "simple",
      clients: 1,
      targets: {
        direct: series(1_000, 1_000),
        pgbouncer: series(700, 1_200),
        pipe: series(700, 1_300),
        unfenced: series(600, 1_300),
        fenced: series(500, 1_700),
      },
    },
  ],
};

const memory: MemoryResults = {
  ...facts,
  sessions: 50,
  resident: [{ target: "fenced", nowKb: 60 * 1024, ownKb: 30 * 1024, peakKb: 69 * 1024 }],
  loads: [
    { load: "COPY", mib: 1024, partMib: 64, beforeKb: 50 * 1024, partPeakKb: 80 * 1024, peakKb: 90 * 1024 },
    { load: "one row", mib: 256, partMib: 16, beforeKb: 50 * 1024, partPeakKb: 90 * 1024, peakKb: 110 * 1024 },
  ],
};

const profile: ProfileResults = {
  ...facts,
  seconds: 6,
  profiles: [
    {
      cell: "select-only/prepared/1",
      target: "fenced",
      userUs: 40,
      systemUs: 40,
      systemCalls: { "system calls": 7.5, reads: 2 },
      contextSwitches: 2.25,
      parts: [{ part: "kernel", us: 50 }],
      functions: [{ name: "#walk", us: 1.5 }],
    },
  ],
};

test("an aim is reached only when every cell reaches it; the worst and the best cell are named", () => {
  const all = verdicts({ wire, memory: undefined, profile: undefined });
  const about = (words: string): (typeof all)[number] | undefined => all.find(({ aim }) => aim.includes(words));
  expect(about("≥ 0.9 of PgBouncer")).toEqual({
    aim: "fenced ≥ 0.9 of PgBouncer, which fences nothing",
    met: false,
    detail: "0 of 2 cells; from 0.71 in tpcb-like/simple/1 to 0.88 in select-only/prepared/1",
  });
  expect(about("without the fence")).toMatchObject({ met: false, detail: expect.stringMatching(/^1 of 2 cells/) });
  expect(about("median latency")).toMatchObject({ met: false, detail: expect.stringMatching(/100 µs in tpcb-like/) });
  expect(about("99th")).toMatchObject({ met: false });
  expect(about("70 MB")).toEqual({ aim: "≤ 70 MB resident with 50 sessions", met: null, detail: "not measured" });
});

test("memory is flat when much of a load takes no more than a little of it", () => {
  const judged = (loads: MemoryResults["loads"]): unknown[] =>
    verdicts({ wire: undefined, memory: { ...memory, loads }, profile: undefined }).slice(-2);
  expect(judged(memory.loads)).toEqual([
    { aim: "≤ 70 MB resident with 50 sessions", met: true, detail: "60 MB, at most 69 MB" },
    {
      aim: "memory flat, whatever is sent",
      met: false,
      detail: "at most 20 MB more with 256 than with 16 MiB (one row)",
    },
  ]);
  expect(judged(memory.loads.slice(0, 1))).toMatchObject([{}, { met: true }]);
});

test("the document says first what the figures are not, then the aims, and has a row for each cell", () => {
  const text = report({ wire, memory, profile });
  expect(text.indexOf("do **not** say")).toBeLessThan(text.indexOf("## Aims"));
  expect(text).toContain("| select-only | prepared | 1 | 7500 | 0.80 (0.80–0.80) | 0.88 (0.88–0.88) |");
  expect(text).toContain("| tpcb-like | simple | 1 | 7 | 143 | 29 | 43 | 43 | 100 |");
  expect(text).toContain("| one row | 16 | 90 MB | 256 | 110 MB |");
  expect(text).toContain("| fenced | 60 MB | 30 MB | 69 MB |");
  expect(text).toContain("| 1 | 40.0 | 40.0 | 40.0 | 40.0 | 40.0 |");
  expect(text).toContain("| select-only/prepared/1 | fenced | 40.0 | 40.0 | 200,000 | 7.50 | 2.00 | 2.25 |");
  expect(text).not.toMatch(/NaN|undefined|null/);
});

test("without PgBouncer the reason stands in its place, ratios are to direct, and there is no picture", () => {
  const cells = wire.cells.map((cell) => ({
    ...cell,
    targets: Object.fromEntries(Object.entries(cell.targets).filter(([name]) => name !== "pgbouncer")),
  }));
  const without: WireResults = {
    ...wire,
    cells,
    skipped: [{ target: "pgbouncer", why: "PgBouncer is not installed" }],
  };
  const text = report({ wire: without, memory: undefined, profile: undefined });
  expect(text).toContain("Not measured: pgbouncer: PgBouncer is not installed.");
  expect(text).toContain("fenced / direct");
  expect(text).not.toContain("bench-wire.svg");
  expect(picture(without)).toBeUndefined();
});

test("the picture has a bar and its range for each cell and target, and the aims", () => {
  const svg = picture(wire) ?? "";
  expect(svg.match(/<rect class="fenced"[^>]*><title>/g)).toHaveLength(2);
  expect(svg).toContain("<title>fenced: 0.88 (0.88–0.88)</title>");
  expect(svg.match(/class="aim"/g)).toHaveLength(2 * 3);
  expect(svg).toContain("prefers-color-scheme: dark");
  expect(svg).not.toMatch(/NaN|undefined/);
});

test("results are kept on few lines and not finer than a thousandth", () => {
  const text = compactJson({ tps: [1234.56789, 2], why: "none" });
  expect(text).toBe('{\n  "tps": [ 1234.568, 2 ],\n  "why": "none"\n}\n');
});
