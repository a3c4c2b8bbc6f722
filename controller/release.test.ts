import { expect, test } from "vitest";
import { systemClock } from "../platform/clock.ts";
import type { HttpClient, HttpResponse } from "../platform/http.ts";
import { KubeApi } from "./kube/api.ts";
import { releaseFencedJobs } from "./release.ts";

/** Whoever answers each request with `answer`. */
function answering(answer: Pick<HttpResponse, "status" | "body">): KubeApi {
  const client = { request: async () => ({ headers: {}, ...answer }) };
  return new KubeApi(client as unknown as HttpClient, systemClock, "test");
}

test("where the CRD was deleted before the release there is nothing to let go of, and the uninstall does not fail", async () => {
  expect(await releaseFencedJobs(answering({ status: 404, body: "404 page not found\n" }))).toBe(0);
});

test("a server that cannot answer is not taken for one without FencedJobs", async () => {
  const body = { kind: "Status", reason: "ServiceUnavailable", message: "the server is starting" };
  await expect(releaseFencedJobs(answering({ status: 503, body }))).rejects.toThrow("the server is starting");
});
