/** docs/bench-wire.svg: throughput as a share of PgBouncer's, cell by cell. Pure. */
import { CLIENTS, PROTOCOLS, SCRIPTS, type TargetName } from "./cells.ts";
import { type Spread, throughputRatio } from "./figures.ts";
import type { WireResults } from "./results.ts";

const SHOWN = ["pipe", "unfenced", "fenced"] as const;
const BASE: TargetName = "pgbouncer";
const AIMS = [0.9, 1] as const;
const TOP = 1.2;

const WIDTH = 1080;
const LEFT = 60;
const RIGHT = 20;
const PANEL_HEIGHT = 170;
const PANEL_GAP = 64;
const HEAD = 96;
const BAR_GAP = 2;

/** Undefined when there is nothing to set the bars against. */
export function picture(wire: WireResults): string | undefined {
  const panels = SCRIPTS.map((script, i) => panel(wire, script, HEAD + i * (PANEL_HEIGHT + PANEL_GAP)));
  if (panels.every((bars) => !bars.includes("<rect"))) return undefined;
  const height = HEAD + SCRIPTS.length * (PANEL_HEIGHT + PANEL_GAP) - 8;
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${height}" font-family="Helvetica, Arial, sans-serif" font-size="13">
  <title>Throughput as a share of PgBouncer's, in the same round</title>
  <style>
    .ground { fill: #ffffff } .text { fill: #0f172a } .soft { fill: #475569 } .axis { stroke: #94a3b8 } .aim { stroke: #0f172a }
    .pipe { fill: #cbd5e1 } .unfenced { fill: #7dd3fc } .fenced { fill: #0369a1 } .range { stroke: #0f172a }
    @media (prefers-color-scheme: dark) {
      .ground { fill: #0d1117 } .text { fill: #e6edf3 } .soft { fill: #9da7b3 } .axis { stroke: #57606a } .aim { stroke: #e6edf3 }
      .pipe { fill: #57606a } .unfenced { fill: #1f6feb } .fenced { fill: #a5d6ff } .range { stroke: #e6edf3 }
    }
  </style>
  <rect class="ground" width="${WIDTH}" height="${height}"/>
  <text class="text" x="${LEFT}" y="26" font-size="16" font-weight="bold">Throughput as a share of PgBouncer's, in the same round</text>
  <text class="soft" x="${LEFT}" y="46">Median of ${wire.rounds} rounds, with the least and the most. Lines: the aims, ${AIMS.join(" and ")}.</text>
${legend()}
${panels.join("\n")}
</svg>
`;
}

function legend(): string {
  return SHOWN.map((name, i) => {
    const x = WIDTH - RIGHT - (SHOWN.length - i) * 100;
    return `  <rect class="${name}" x="${x}" y="15" width="13" height="13"/><text class="text" x="${x + 19}" y="26">${name}</text>`;
  }).join("\n");
}

function panel(wire: WireResults, script: (typeof SCRIPTS)[number], top: number): string {
  const bottom = top + PANEL_HEIGHT;
  const yOf = (share: number): number => bottom - (Math.min(share, TOP) / TOP) * PANEL_HEIGHT;
  const groups = PROTOCOLS.flatMap((protocol) => CLIENTS.map((clients) => ({ protocol, clients })));
  const step = (WIDTH - LEFT - RIGHT) / groups.length;
  const barWidth = (step - 24) / SHOWN.length;
  const lines = [
    `  <text class="text" x="${LEFT}" y="${top - 8}" font-weight="bold">${script}</text>`,
    `  <line class="axis" x1="${LEFT}" y1="${bottom}" x2="${WIDTH - RIGHT}" y2="${bottom}"/>`,
  ];
  for (const [i, { protocol, clients }] of groups.entries()) {
    const left = LEFT + i * step + 12;
    const cell = wire.cells.find(
      (one) => one.script === script && one.protocol === protocol && one.clients === clients,
    );
    for (const [n, name] of SHOWN.entries()) {
      const [of, base] = [cell?.targets[name], cell?.targets[BASE]];
      const share = of && base && throughputRatio(of, base);
      if (share) lines.push(bar(name, share, { x: left + n * barWidth, width: barWidth - BAR_GAP, yOf }));
    }
    lines.push(
      `  <text class="soft" x="${round(left + (step - 24) / 2)}" y="${bottom + 17}" text-anchor="middle" font-size="12">${protocol}, ${clients}</text>`,
    );
  }
  for (const aim of AIMS) {
    const y = round(yOf(aim));
    lines.push(
      `  <line class="aim" x1="${LEFT}" y1="${y}" x2="${WIDTH - RIGHT}" y2="${y}" stroke-dasharray="4 4"/>`,
      `  <text class="soft" x="${LEFT - 8}" y="${y + 4}" text-anchor="end" font-size="12">${aim.toFixed(1)}</text>`,
    );
  }
  return lines.join("\n");
}

function bar(
  name: string,
  { median, min, max }: Spread,
  { x, width, yOf }: { x: number; width: number; yOf: (share: number) => number },
): string {
  const y = yOf(median);
  const middle = round(x + width / 2);
  const tip = `<title>${name}: ${median.toFixed(2)} (${min.toFixed(2)}–${max.toFixed(2)})</title>`;
  return [
    `  <rect class="${name}" x="${round(x)}" y="${round(y)}" width="${round(width)}" height="${round(yOf(0) - y)}">${tip}</rect>`,
    `  <line class="range" x1="${middle}" y1="${round(yOf(min))}" x2="${middle}" y2="${round(yOf(max))}"/>`,
  ].join("\n");
}

const round = (of: number): number => Math.round(of * 10) / 10;
