/** What a session says when the proxy ends; against real servers in closing.pg.test.ts. */
import { expect, test } from "vitest";
import { HostileDialogue } from "../../testing/hostiledialogue.ts";
import { query } from "./messages.ts";

const ENDS = { severity: "FATAL", code: "57P01", message: "the proxy ends" } as const;

test("INV-10: a block that a takeover has ended hears of that, not of the proxy's end", () => {
  const dialogue = new HostileDialogue();
  dialogue.client(query("BEGIN"));
  dialogue.client(query("SELECT 1"));
  dialogue.settle();
  expect(dialogue.session.farewell(ENDS).toString()).toContain("C57P01");
  dialogue.server.raise(true);
  dialogue.settle();
  // The fence row was read, and the reason is kept for the client's next message.
  expect(dialogue.session.farewell(ENDS).toString()).toContain("CLF001");
});
