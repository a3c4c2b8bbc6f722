import { expect, test } from "vitest";
import { customResourceDefinition } from "./crd.ts";

interface Schema {
  readonly description?: string;
  readonly properties?: Readonly<Record<string, Schema>>;
  readonly items?: Schema;
}

/** Paths below `schema` about which `kubectl explain` has no word. */
function unexplained(schema: Schema, path: string): string[] {
  const { description, properties = {}, items } = schema;
  const inner = Object.entries({ ...properties, ...items?.properties });
  return [...(description ? [] : [path]), ...inner.flatMap(([name, field]) => unexplained(field, `${path}.${name}`))];
}

test("kubectl explain says something about the resource and about each field of its spec", () => {
  const { versions } = customResourceDefinition().spec as { versions: { schema: { openAPIV3Schema: Schema } }[] };
  const root = versions[0]?.schema.openAPIV3Schema;
  expect(root?.description).toContain("exactly one writer");
  expect(unexplained(root?.properties?.spec ?? {}, "spec")).toEqual([]);
});
