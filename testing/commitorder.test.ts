import { expect, test } from "vitest";
import { judgeCommitOrder } from "./commitorder.ts";

const raise = (generation: number): string[] => [
  "BEGIN",
  `table fence.job: UPDATE: id[integer]:1 name[text]:'a' generation[bigint]:${generation} holder[text]:'x'`,
  "COMMIT",
];
const write = (generation: number): string[] => [
  "BEGIN",
  `table public.ledger: INSERT: id[bigint]:1 generation[bigint]:${generation}`,
  "COMMIT",
];
const judge = (...transactions: string[][]) => judgeCommitOrder(transactions.flat(), "public.ledger");

test("writes of the fence's generation are in order", () => {
  expect(judge(raise(1), write(1), write(1), raise(2), write(2))).toEqual({
    commits: 3,
    raises: 2,
    closes: 0,
    stale: 0,
    lowered: 0,
    example: null,
  });
});

test("INV-3: a write of an older generation after the raise is found, and so is one of a generation not raised yet", () => {
  expect(judge(raise(1), raise(2), write(1))).toMatchObject({ stale: 1, commits: 1 });
  expect(judge(raise(1), write(2), raise(2))).toMatchObject({ stale: 1 });
});

test("INV-3: a write behind the close of its generation is found, and none behind the next raise", () => {
  const close = [
    "BEGIN",
    "table fence.claim: UPDATE: job_id[integer]:1 generation[bigint]:1 progress_at[timestamp with time zone]:null closed_at[timestamp with time zone]:'2026-11-29 12:00:00+00'",
    "COMMIT",
  ];
  expect(judge(raise(1), write(1), close, raise(2), write(2))).toMatchObject({ stale: 0, closes: 1 });
  expect(judge(raise(1), close, write(1))).toMatchObject({ stale: 1 });
});

test("INV-1: a fence that goes down or repeats itself is found", () => {
  expect(judge(raise(3), raise(2), raise(2))).toMatchObject({ lowered: 2, raises: 3 });
});
