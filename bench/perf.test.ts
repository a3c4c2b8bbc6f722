import { expect, test } from "vitest";
import { parseReport, parseStat } from "./perf.ts";

test("counts of perf stat, per round trip; what was not counted is none", () => {
  const text = [
    "# started on Sun Nov 29 19:37:09 2026",
    "",
    "6000,,raw_syscalls:sys_enter,1373977266,100.00,,",
    "1900,,syscalls:sys_enter_read,1373977266,100.00,,",
    "100,,syscalls:sys_enter_recvfrom,1373977266,100.00,,",
    "<not counted>,,syscalls:sys_enter_writev,0,100.00,,",
    "2000,,context-switches,1373977266,100.00,,",
  ];
  const { systemCalls, contextSwitches } = parseStat(text.join("\n"), 1000);
  expect(systemCalls).toMatchObject({ "system calls": 6, reads: 2, polls: 0 });
  expect(contextSwitches).toBe(2);
});

test("samples are told apart by whose code ran; functions of the program go by their name alone", () => {
  const lines = [
    "# Samples: 1K of event 'cpu-clock'",
    "50.00%\t[kernel.kallsyms]  \t[k] tcp_sendmsg",
    "10.00%\t[JIT] tid 27445\t[.] JS:*'#walk file:///srv/dist/chunk-2IX6PP7I.js:6963:8",
    "5.00%\t[JIT] tid 27445\t[.] JS:+'#walk file:///srv/dist/chunk-2IX6PP7I.js:6963:8",
    "5.00%\t[JIT] tid 27445\t[.] JS:+get node:internal/streams/readable:139:8",
    "5.00%\tnode\t[.] Builtins_LoadIC",
    "5.00%\tnode\t[.] v8::internal::Heap::YoungArrayBufferBytes",
    "5.00%\tnode\t[.] uv__io_poll",
    "5.00%\tlibc.so.6\t[.] _int_malloc",
  ];
  const { parts, functions } = parseReport(lines.join("\n"));
  const rounded = (of: readonly (readonly [string, number])[]): Record<string, string> =>
    Object.fromEntries(of.map(([name, share]) => [name, share.toFixed(3)]));
  expect(rounded(parts)).toEqual({
    kernel: "0.556",
    "JavaScript of the program": "0.167",
    "JavaScript of Node.js": "0.056",
    "V8's built-in code": "0.056",
    "V8's memory and its collector": "0.056",
    "Node.js, libuv and the rest of V8": "0.056",
    "the program and libraries": "0.056",
  });
  expect(rounded(functions)).toEqual({ "#walk": "0.167", "get (node:internal/streams/readable)": "0.056" });
});
