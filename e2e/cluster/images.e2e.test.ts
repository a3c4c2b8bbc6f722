import { expect, test } from "vitest";
import { run } from "./command.ts";
import { image } from "./images.ts";

test("an image is built once for the same inputs, and its archive names it", async () => {
  const said: string[] = [];
  const first = await image("fencedjob-pause", () => {});
  expect(await image("fencedjob-pause", (line) => said.push(line))).toEqual(first);
  expect(said).toEqual([]);
  const manifest = JSON.parse(await run(["tar", "-xOf", first.archive, "manifest.json"])) as [{ RepoTags: string[] }];
  expect(manifest[0].RepoTags).toEqual([first.ref]);
});
