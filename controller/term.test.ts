import { expect, test } from "vitest";
import type { Term } from "../lease/election.ts";
import type { HttpClient, HttpRequest } from "../platform/http.ts";
import { clientDuring } from "./term.ts";

const write: HttpRequest = { method: "PUT", path: "/x?y", timeoutMs: 1_000 };

function aClient(term: Term) {
  const sent: HttpRequest[] = [];
  const inner = {
    request: (request: HttpRequest) => {
      sent.push(request);
      return new Promise((_, reject) =>
        request.signal?.addEventListener("abort", () => reject(request.signal?.reason)),
      );
    },
  } as unknown as HttpClient;
  return { sent, client: clientDuring(term, inner) };
}

test("with a permit that has run out nothing is sent, though nobody has noticed", async () => {
  const { sent, client } = aClient({ signal: new AbortController().signal, valid: () => false });
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
  const ends = [new AbortController(), new AbortController()] as const;
  const { sent, client } = aClient({ signal: ends[0].signal, valid: () => true });
  const request = client.request({ ...write, signal: ends[1].signal });
  expect(sent).toHaveLength(1);
  ends[which]?.abort(new Error("over"));
  await expect(request).rejects.toThrow("over");
});
