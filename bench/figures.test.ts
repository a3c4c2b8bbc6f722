import { expect, test } from "vitest";
import { seededRandom } from "../testing/seeded.ts";
import { CLIENTS, cellName, cellsOf, PROTOCOLS, SCRIPTS } from "./cells.ts";
import { addedLatency, type Series, spread, throughputRatio } from "./figures.ts";
import { shuffled } from "./measure.ts";
import { kilobytes, parseStat } from "./processfacts.ts";

const series = (of: Partial<Series>): Series => ({
  tps: [],
  latencyAverageUs: [],
  latencyMedianUs: [],
  latencyP99Us: [],
  connectMs: [],
  cpuUs: [],
  ...of,
});

test("a ratio is made inside its round, not of medians over rounds: the machine may halve between them", () => {
  const peer = series({ tps: [1000, 500, 250] });
  const proxy = series({ tps: [900, 600, 200] });
  expect(throughputRatio(proxy, peer)).toEqual({ median: 0.9, min: 0.8, max: 1.2 });
});

test("the median of an even number of rounds lies between the middle two", () => {
  expect(spread([4, 1, 3, 2])).toEqual({ median: 2.5, min: 1, max: 4 });
  expect(spread([7])).toEqual({ median: 7, min: 7, max: 7 });
  expect(spread([])).toBeUndefined();
});

test("latency is what is added to each round trip of a transaction", () => {
  const direct = series({ latencyMedianUs: [700, 800] });
  const proxy = series({ latencyMedianUs: [1050, 1150] });
  expect(addedLatency(proxy, direct, "latencyMedianUs", 7)).toEqual({ median: 50, min: 50, max: 50 });
  expect(addedLatency(proxy, direct, "latencyP99Us", 7)).toBeUndefined();
});

test("cells are named by script, protocol and clients; parts and stars name several", () => {
  expect(cellsOf([])).toHaveLength(SCRIPTS.length * PROTOCOLS.length * CLIENTS.length);
  expect(cellsOf(["select-only/prepared/8"]).map(cellName)).toEqual(["select-only/prepared/8"]);
  expect(cellsOf(["select-only", "*/simple/1"])).toHaveLength(9 + 2);
  expect(() => cellsOf(["select-only/prepared/9"])).toThrow(/no cell is named "select-only\/prepared\/9"/);
});

test("a shuffle keeps every target, its seed repeats it, and rounds differ", () => {
  const orders = (seed: number): string[] => {
    const random = seededRandom(seed);
    return Array.from({ length: 20 }, () => shuffled(["a", "b", "c", "d"], random).join(""));
  };
  expect(orders(3)).toEqual(orders(3));
  expect(new Set(orders(3)).size).toBeGreaterThan(5);
  for (const order of orders(3)) expect([...order].sort().join("")).toBe("abcd");
});

test("processor time is found behind a name with spaces and parentheses", () => {
  const stat = `123 (node (a) b) S 1 123 123 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 11 0 12345 1 2`;
  expect(parseStat(stat)).toEqual({ userUs: 2_500_000, systemUs: 500_000 });
});

test("memory is read from the status of a process", () => {
  expect(kilobytes("Name:\tnode\nVmHWM:\t   70000 kB\nVmRSS:\t   65432 kB\n", "VmRSS")).toBe(65432);
  expect(() => kilobytes("Name:\tnode\n", "VmRSS")).toThrow(/no VmRSS/);
});
