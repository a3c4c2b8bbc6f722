/** Reads what `perf stat` and `perf report` say. Pure. */

/** By kind; a call of no kind is counted in "system calls" only. */
const KINDS: Readonly<Record<string, readonly string[]>> = {
  reads: ["read", "readv", "recvfrom", "recvmsg"],
  writes: ["write", "writev", "sendto", "sendmsg"],
  polls: ["epoll_wait", "epoll_pwait"],
};
const ALL_CALLS = "raw_syscalls:sys_enter";
const CONTEXT_SWITCHES = "context-switches";
const event = (call: string): string => `syscalls:sys_enter_${call}`;

/** For `perf stat --event`. */
export const STAT_EVENTS = [ALL_CALLS, CONTEXT_SWITCHES, ...Object.values(KINDS).flat().map(event)].join(",");

export interface Counts {
  readonly systemCalls: Readonly<Record<string, number>>;
  readonly contextSwitches: number;
}

/** From `perf stat --field-separator ,`; divided by `per`. */
export function parseStat(text: string, per: number): Counts {
  const counts = new Map<string, number>();
  for (const line of text.split("\n")) {
    const [value = "", , name = ""] = line.split(",");
    if (name !== "") counts.set(name, Number(value) || 0);
  }
  const of = (name: string): number => (counts.get(name) ?? 0) / per;
  const kinds = Object.entries(KINDS).map(([kind, calls]): [string, number] => [
    kind,
    calls.map((call) => of(event(call))).reduce((a, b) => a + b),
  ]);
  return {
    systemCalls: { "system calls": of(ALL_CALLS), ...Object.fromEntries(kinds) },
    contextSwitches: of(CONTEXT_SWITCHES),
  };
}

export interface Shares {
  /** Of 1, the most first. */
  readonly parts: readonly (readonly [part: string, share: number])[];
  readonly functions: readonly (readonly [name: string, share: number])[];
}

/** From `perf report --stdio --field-separator <tab> --fields overhead,dso,sym`. */
export function parseReport(text: string): Shares {
  const parts = new Map<string, number>();
  const functions = new Map<string, number>();
  let all = 0;
  for (const line of text.split("\n")) {
    const [percent = "", object = "", symbol = ""] = line.split("\t").map((field) => field.trim());
    const share = Number(/^([\d.]+)%$/.exec(percent)?.[1]);
    if (Number.isNaN(share)) continue;
    const name = symbol.replace(/^\[.\] /, "");
    all += share;
    add(parts, partOf(object, name), share);
    const javaScript = functionName(name);
    if (javaScript !== undefined) add(functions, javaScript, share);
  }
  const sorted = (of: Map<string, number>): [string, number][] =>
    [...of].map(([name, share]): [string, number] => [name, share / all]).sort(([, a], [, b]) => b - a);
  return { parts: sorted(parts), functions: sorted(functions) };
}

function add(to: Map<string, number>, name: string, share: number): void {
  to.set(name, (to.get(name) ?? 0) + share);
}

/** Names that V8 gives to its own ready-made code, in the program and beside it. */
const BUILTIN = /^(Builtins?_|Builtin:|BytecodeHandler:|Stub:|RegExp:)/;
const COLLECTOR =
  /^(v8::internal::|cppgc::|heap::).*(Heap|Scaveng|MarkCompact|Marking|Sweep|Allocat|GlobalHandles|ArrayBufferSweeper|Evacuat)/;

function partOf(object: string, name: string): string {
  if (object.startsWith("[kernel")) return "kernel";
  if (name.startsWith("JS:")) return name.includes(" node:") ? "JavaScript of Node.js" : "JavaScript of the program";
  if (BUILTIN.test(name)) return "V8's built-in code";
  if (COLLECTOR.test(name)) return "V8's memory and its collector";
  if (object === "node" || object.startsWith("[JIT]")) return "Node.js, libuv and the rest of V8";
  return "the program and libraries";
}

/** `JS:*'#walk file:///…/chunk.js:69:8` → `#walk`; `JS:+nextTick node:internal/…:1:2` → `nextTick (node:internal/…)`. */
function functionName(name: string): string | undefined {
  const [, called, place] = /^JS:[*+^~']*(.*?) (\S+?):\d+:\d+$/.exec(name) ?? [];
  if (called === undefined || place === undefined) return undefined;
  return place.startsWith("node:") ? `${called} (${place})` : called;
}
