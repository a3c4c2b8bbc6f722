import { expect, test } from "vitest";
import { HttpError } from "../../platform/http.ts";
import * as errors from "./errors.ts";

const answer = (status: number, reason = "", headers = {}) =>
  errors.apiError("PUT /x", { status, headers, body: { reason, message: "says the server" } });

const predicates = {
  isConflict: errors.isConflict,
  isAlreadyExists: errors.isAlreadyExists,
  isNotFound: errors.isNotFound,
  isGone: errors.isGone,
  isThrottled: errors.isThrottled,
  isUnauthorized: errors.isUnauthorized,
  isForbidden: errors.isForbidden,
  isInvalid: errors.isInvalid,
  isUnknownOutcome: errors.isUnknownOutcome,
};

test.each([
  ["a changed object", answer(409, "Conflict"), "isConflict"],
  ["a taken name", answer(409, "AlreadyExists"), "isAlreadyExists"],
  ["a missing object", answer(404, "NotFound"), "isNotFound"],
  ["a path that is not served", answer(404, ""), null],
  ["an old resource version", answer(410, "Expired"), "isGone"],
  ["too many requests", answer(429, "TooManyRequests"), "isThrottled"],
  ["an old token", answer(401, "Unauthorized"), "isUnauthorized"],
  ["a missing right", answer(403, "Forbidden"), "isForbidden"],
  ["an invalid object", answer(422, "Invalid"), "isInvalid"],
  ["a value that cannot be parsed", answer(400, "BadRequest"), "isInvalid"],
  ["a server that gave up waiting for etcd", answer(504, "Timeout"), "isUnknownOutcome"],
  ["a broken connection", new HttpError("reset", "", true), "isUnknownOutcome"],
  ["a connection that nobody took", new HttpError("refused", "", false), null],
  ["an error of ours", new TypeError("x"), null],
])("%s is exactly one thing", (_name, error, want) => {
  const holding = Object.entries(predicates).filter(([, holds]) => holds(error));
  expect(holding.map(([name]) => name)).toEqual(want === null ? [] : [want]);
});

test("an error says what was asked, what the server said, and how long to wait", () => {
  const error = answer(429, "TooManyRequests", { "retry-after": "3" });
  expect(error.message).toBe("PUT /x: says the server");
  expect(errors.retryAfterMs(error)).toBe(3000);
  expect(errors.retryAfterMs(new Error("x"))).toBe(0);
  // A gateway's page about its maintenance: nobody is blind for an hour behind the end of that.
  expect(errors.retryAfterMs(answer(503, "", { "retry-after": "3600" }))).toBe(60_000);
  expect(errors.apiError("GET /", { status: 502, headers: {}, body: "<html>" }).message).toBe("GET /: answered 502");
});
