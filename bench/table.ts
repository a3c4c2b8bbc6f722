/** Figures of a cell as lines for a terminal. Pure. */
import { type Cell, cellName, ROUND_TRIPS, SOCKETS, TARGETS, targetKey } from "./cells.ts";
import { addedLatency, type Series, type Spread, spread, throughputRatio } from "./figures.ts";

const HEADS = [
  "",
  "tps",
  "of direct",
  "of PgBouncer",
  "of unfenced",
  "added µs",
  "added p99",
  "cpu µs/tx",
  "connect ms",
];
const WIDTH = 17;

/** One line for each target: medians, ratios with their least and most. Latencies are per round trip. */
export function cellTable(cell: Cell, byTarget: Readonly<Record<string, Series>>): string {
  const lines = [
    cellName(cell),
    HEADS.map((head, i) => (i === 0 ? head.padEnd(WIDTH) : head.padStart(WIDTH))).join(""),
  ];
  for (const sockets of SOCKETS) {
    const of = (name: (typeof TARGETS)[number]): Series | undefined => byTarget[targetKey(name, sockets)];
    for (const name of TARGETS) {
      const series = of(name);
      if (!series) continue;
      const ratioTo = (base: Series | undefined): string =>
        base && base !== series ? ratio(throughputRatio(series, base)) : "";
      const direct = of("direct");
      const added = (which: "latencyMedianUs" | "latencyP99Us"): string =>
        direct && direct !== series ? whole(addedLatency(series, direct, which, ROUND_TRIPS[cell.script])) : "";
      const columns = [
        whole(spread(series.tps)),
        ratioTo(direct),
        ratioTo(of("pgbouncer")),
        name === "fenced" ? ratioTo(of("unfenced")) : "",
        added("latencyMedianUs"),
        added("latencyP99Us"),
        whole(spread(series.cpuUs)),
        whole(spread(series.connectMs)),
      ];
      lines.push(`  ${targetKey(name, sockets)}`.padEnd(WIDTH) + columns.map((text) => text.padStart(WIDTH)).join(""));
    }
  }
  return lines.map((line) => line.trimEnd()).join("\n");
}

/** `0.91 (0.88–0.95)` */
export const ratio = (of: Spread | undefined): string =>
  of ? `${of.median.toFixed(2)} (${of.min.toFixed(2)}–${of.max.toFixed(2)})` : "";

export const whole = (of: Spread | undefined): string => (of ? String(Math.round(of.median)) : "");
