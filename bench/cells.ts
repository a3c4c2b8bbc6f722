/** What is measured: the cells, the targets, and how they are named on the command line. Pure. */

export const SCRIPTS = ["select-only", "simple-update", "tpcb-like"] as const;
export const PROTOCOLS = ["simple", "extended", "prepared"] as const;
export const CLIENTS = [1, 8, 32] as const;

export type Script = (typeof SCRIPTS)[number];

export interface Cell {
  readonly script: Script;
  readonly protocol: (typeof PROTOCOLS)[number];
  readonly clients: number;
}

/** Statements of one transaction, each of them one round trip in every protocol of pgbench. */
export const ROUND_TRIPS: Readonly<Record<Script, number>> = {
  "select-only": 1,
  "simple-update": 5,
  "tpcb-like": 7,
};

export const TARGETS = ["direct", "pgbouncer", "pipe", "unfenced", "fenced"] as const;
export type TargetName = (typeof TARGETS)[number];

/** How the application's side connects; behind a target it is TCP always, as PostgreSQL is on another machine. */
export const SOCKETS = ["tcp", "unix"] as const;
export type Sockets = (typeof SOCKETS)[number];

/** Names a target's figures in the results. */
export const targetKey = (name: TargetName, sockets: Sockets): string => (sockets === "tcp" ? name : `${name}, unix`);

export const cellName = ({ script, protocol, clients }: Cell): string => `${script}/${protocol}/${clients}`;

/**
 * The cells that any of the patterns names: `select-only/prepared/8`, with `*` or nothing for "each" in any of the three
 * places (`select-only`, `*` + `/prepared`). No pattern: all. Throws when a pattern names none.
 */
export function cellsOf(patterns: readonly string[]): Cell[] {
  const all = SCRIPTS.flatMap((script) =>
    PROTOCOLS.flatMap((protocol) => CLIENTS.map((clients): Cell => ({ script, protocol, clients }))),
  );
  if (patterns.length === 0) return all;
  const wanted = new Set(patterns.flatMap((pattern) => named(all, pattern)));
  return all.filter((cell) => wanted.has(cell));
}

function named(all: readonly Cell[], pattern: string): Cell[] {
  const parts = pattern.split("/");
  const found = all.filter((cell) => {
    const words = cellName(cell).split("/");
    return parts.length <= words.length && parts.every((part, i) => part === "*" || part === words[i]);
  });
  if (found.length > 0) return found;
  throw new Error(
    `no cell is named "${pattern}": give script/protocol/clients, of ${SCRIPTS.join(", ")}; ${PROTOCOLS.join(", ")}; ${CLIENTS.join(", ")}; * or nothing for each`,
  );
}
