import { expect, test } from "vitest";
import type { Term } from "../lease/election.ts";
import type { HttpClient, HttpRequest } from "../platform/http.ts";
import { leadersClient } from "./leading.ts";

const write: HttpRequest = { method: "PUT", path: "/x?y", timeoutMs: 1_000 };

function aClient() {
  const sent: HttpRequest[] = [];
  const inner = {
    request: (request: HttpRequest) => {
      sent.push(request);
      return new Promise((_, reject) =>
        request.signal?.addEventListener("abort", () => reject(request.signal?.reason)),
      );
    },
  } as unknown as HttpClient;
  const term = { present: null as Term | null };
  return { sent, term, client: leadersClient(inner, () => term.present) };
}

test.each([
  ["without a term", null],
  [
    "with a permit that has run out, though nobody has noticed (INV-5)",
    { signal: new AbortController().signal, valid: () => false },
  ],
])("%s nothing is sent", async (_what, present) => {
  const { sent, term, client } = aClient();
  term.present = present;
  await expect(client.request(write)).rejects.toMatchObject({
    kind: "aborted",
    sent: false,
    message: "PUT /x: not sent, as another controller may lead by now",
  });
  expect(sent).toEqual([]);
});

test.each([
  ["the term", 0],
  ["the caller", 1],
])("what is under way ends with %s", async (_who, which) => {
  const { sent, term, client } = aClient();
  const ends = [new AbortController(), new AbortController()] as const;
  term.present = { signal: ends[0].signal, valid: () => true };
  const request = client.request({ ...write, signal: ends[1].signal });
  expect(sent).toHaveLength(1);
  ends[which]?.abort(new Error("over"));
  await expect(request).rejects.toThrow("over");
});
