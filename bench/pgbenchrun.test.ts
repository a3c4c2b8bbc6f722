import { expect, test } from "vitest";
import { latencyOf, parsePgbench } from "./pgbenchrun.ts";

const REPORT = `pgbench (15.20 (Debian 15.20-0+deb12u1))
transaction type: <builtin: select only>
scaling factor: 10
query mode: prepared
number of clients: 8
number of threads: 2
maximum number of tries: 1
duration: 4 s
number of transactions actually processed: 41234
number of failed transactions: 0 (0.000%)
latency average = 0.776 ms
initial connection time = 12.345 ms
tps = 10308.500000 (without initial connection time)
`;

test("a report of pgbench is read: transactions, throughput without connecting, latency in µs, time to connect", () => {
  expect(parsePgbench(REPORT)).toEqual({ transactions: 41234, tps: 10308.5, latencyAverageUs: 776, connectMs: 12.345 });
});

test("a run with failed transactions is no measurement", () => {
  expect(() => parsePgbench(REPORT.replace("failed transactions: 0", "failed transactions: 3"))).toThrow(
    /3 transactions failed/,
  );
});

test("a run that was over before all sessions were open is no measurement, and says what to do", () => {
  const none = REPORT.replace("processed: 41234", "processed: 0").replace(/tps = .*\n/, "");
  expect(() => parsePgbench(none)).toThrow(/give more --seconds/);
});

test.each(["tps", "latency average", "number of failed"])("a report without %s is no measurement", (word) => {
  const lines = REPORT.split("\n").filter((line) => !line.startsWith(word));
  expect(() => parsePgbench(lines.join("\n"))).toThrow(/does not say/);
});

test("the median and the 99th percentile of a transaction log, whatever its order", () => {
  const lines = Array.from({ length: 1000 }, (_, i) => `0 ${i + 1} ${((i * 7919) % 1000) + 1} 0 1700000000 12345`);
  expect(latencyOf(`${lines.join("\n")}\n`)).toEqual({ medianUs: 501, p99Us: 991 });
});
