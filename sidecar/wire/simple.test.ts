import { expect, test } from "vitest";
import { PREFIX, Setup } from "../../testing/wiresetup.ts";
import { query } from "./messages.ts";

/** The bytes, and how many of them were looked at one by one. */
function counted(bytes: Buffer): { bytes: Buffer; reads: () => number } {
  let reads = 0;
  const watching = new Proxy(bytes, {
    get: (target, key) => {
      const value: unknown = Reflect.get(target, key);
      if (typeof value === "function") return value.bind(target);
      if (typeof key === "string" && /^\d/.test(key)) reads++;
      return value;
    },
  });
  return { bytes: watching, reads: () => reads };
}

test("one client's long text does not stop the others: each byte is looked at a few times, however many fences go in", () => {
  const transactions = 300;
  const { bytes, reads } = counted(query("COMMIT;SELECT 1;".repeat(transactions)));
  const setup = new Setup();
  setup.session.fromClient(bytes, 0, bytes.length);
  expect(setup.sent().join().split(PREFIX)).toHaveLength(transactions + 1);
  expect(reads()).toBeLessThan(5 * bytes.length);
});
