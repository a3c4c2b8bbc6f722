/** What the wire is to reach, and whether the figures reach it. Pure. */
import { type Cell, cellName, ROUND_TRIPS, type Sockets, targetKey } from "./cells.ts";
import { addedLatency, type Series, type Spread, throughputRatio } from "./figures.ts";
import type { LoadMemory, MemoryResults, Results, WireResults } from "./results.ts";

export interface Verdict {
  readonly aim: string;
  /** Null: not measured. */
  readonly met: boolean | null;
  /** How far it goes, for people. */
  readonly detail: string;
}

/** An aim that each cell reaches by its median, or does not. */
interface CellAim {
  readonly aim: string;
  readonly unit: string;
  readonly digits: number;
  of(cell: Cell, by: (name: "direct" | "pgbouncer" | "unfenced" | "fenced") => Series | undefined): Spread | undefined;
  reached(median: number): boolean;
}

const OF_PGBOUNCER = 0.9;
const OF_PGBOUNCER_THEN = 1;
const OF_UNFENCED = 0.95;
const ADDED_MEDIAN_US = 60;
const ADDED_P99_US = 250;
export const RESIDENT_KB = 70 * 1024;
/** What a lazy collector may leave lying about longer, while sixteen times as much is sent. */
const GROWTH_KB = 16 * 1024;

const versus = (a: Series | undefined, b: Series | undefined): Spread | undefined => a && b && throughputRatio(a, b);

const ratioAim = (aim: string, least: number, to: "pgbouncer" | "unfenced"): CellAim => ({
  aim,
  unit: "",
  digits: 2,
  of: (_, by) => versus(by("fenced"), by(to)),
  reached: (median) => median >= least,
});

const latencyAim = (aim: string, mostUs: number, which: "latencyMedianUs" | "latencyP99Us"): CellAim => ({
  aim,
  unit: " µs",
  digits: 0,
  of: ({ script }, by) => {
    const [fenced, direct] = [by("fenced"), by("direct")];
    return fenced && direct && addedLatency(fenced, direct, which, ROUND_TRIPS[script]);
  },
  reached: (median) => median <= mostUs,
});

const CELL_AIMS: readonly CellAim[] = [
  ratioAim(`fenced ≥ ${OF_PGBOUNCER} of PgBouncer, which fences nothing`, OF_PGBOUNCER, "pgbouncer"),
  ratioAim("then fenced ≥ 1.0 of PgBouncer", OF_PGBOUNCER_THEN, "pgbouncer"),
  ratioAim("fenced ≥ 0.95 of the same proxy without the fence", OF_UNFENCED, "unfenced"),
  latencyAim(
    `median latency added to a round trip, 1 client, ≤ ${ADDED_MEDIAN_US} µs`,
    ADDED_MEDIAN_US,
    "latencyMedianUs",
  ),
  latencyAim(`99th percentile of the same ≤ ${ADDED_P99_US} µs`, ADDED_P99_US, "latencyP99Us"),
];

export function verdicts({ wire, memory }: Results): Verdict[] {
  return [
    ...CELL_AIMS.flatMap((aim) =>
      wire ? wire.sockets.map((sockets) => judge(aim, wire, sockets)) : [{ aim: aim.aim, ...NOT_MEASURED }],
    ),
    ...memoryVerdicts(memory),
  ];
}

const NOT_MEASURED = { met: null, detail: "not measured" };

function judge(aim: CellAim, { cells, sockets: all }: WireResults, sockets: Sockets): Verdict {
  const name = all.length > 1 ? `${aim.aim} (${sockets === "tcp" ? "TCP" : "Unix socket"})` : aim.aim;
  const measured = cells.flatMap((cell) => {
    const spread = aim.of(cell, (target) => cell.targets[targetKey(target, sockets)]);
    return spread ? [{ cell, median: spread.median }] : [];
  });
  if (measured.length === 0) return { aim: name, ...NOT_MEASURED };
  const said = ({ cell, median }: (typeof measured)[number]): string =>
    `${median.toFixed(aim.digits)}${aim.unit} in ${cellName(cell)}`;
  const sorted = [...measured].sort((a, b) => a.median - b.median);
  const [least, most] = [sorted[0], sorted.at(-1)];
  const reached = measured.filter(({ median }) => aim.reached(median)).length;
  return {
    aim: name,
    met: reached === measured.length,
    detail: `${reached} of ${measured.length} cells; from ${least ? said(least) : ""} to ${most ? said(most) : ""}`,
  };
}

function memoryVerdicts(memory: MemoryResults | undefined): Verdict[] {
  const resident = "≤ 70 MB resident with 50 sessions";
  const flat = "memory flat, whatever is sent";
  if (!memory) return [resident, flat].map((aim) => ({ aim, ...NOT_MEASURED }));
  const fenced = memory.resident.find(({ target }) => target === "fenced");
  const growth = ({ partPeakKb, peakKb }: LoadMemory): number => Math.max(0, peakKb - partPeakKb);
  const worst = [...memory.loads].sort((a, b) => growth(b) - growth(a))[0];
  return [
    fenced
      ? {
          aim: resident,
          met: fenced.peakKb <= RESIDENT_KB,
          detail: `${megabytes(fenced.nowKb)}, at most ${megabytes(fenced.peakKb)}`,
        }
      : { aim: resident, ...NOT_MEASURED },
    worst
      ? {
          aim: flat,
          met: growth(worst) <= GROWTH_KB,
          detail: `at most ${megabytes(growth(worst))} more with ${worst.mib} than with ${worst.partMib} MiB (${worst.load})`,
        }
      : { aim: flat, ...NOT_MEASURED },
  ];
}

export const megabytes = (kb: number): string => `${Math.round(kb / 1024)} MB`;
