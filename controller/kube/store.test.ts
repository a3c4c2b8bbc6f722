import { describe, expect, test } from "vitest";
import { keyOf, type ObjectLike, parseKey } from "./objects.ts";
import { Store } from "./store.ts";

interface Pod extends ObjectLike {
  spec: { job: string; labels: string[] };
}

const pod = (name: string, job: string, uid = name): Pod => ({
  metadata: { name, namespace: "n", uid, resourceVersion: "1" },
  spec: { job, labels: [] },
});
const podStore = () => new Store<Pod>({ job: ({ spec }) => [spec.job] });
const names = (pods: Pod[]) => pods.map(({ metadata }) => metadata.name);

describe("the store", () => {
  test("says what each change replaced", () => {
    const store = podStore();
    const [first, second] = [pod("a", "x"), pod("a", "y")];
    expect(store.put(first)).toEqual([{ key: "n/a", before: undefined, after: first }]);
    expect(store.put(second)).toEqual([{ key: "n/a", before: first, after: second }]);
    expect(store.remove("n/a")).toEqual([{ key: "n/a", before: second, after: undefined }]);
    expect(store.remove("n/a")).toEqual([]);
  });

  test("finds objects by what they belong to, also after that has changed", () => {
    const store = podStore();
    for (const one of [pod("a", "x"), pod("b", "x"), pod("c", "y")]) store.put(one);
    expect(names(store.by("job", "x"))).toEqual(["a", "b"]);
    store.put(pod("a", "y"));
    store.remove("n/c");
    expect(names(store.by("job", "x"))).toEqual(["b"]);
    expect(names(store.by("job", "y"))).toEqual(["a"]);
    expect(store.by("job", "z")).toEqual([]);
  });

  test("an object that an indexer chokes on changes nothing", () => {
    const store = podStore();
    store.put(pod("a", "x"));
    expect(() => store.put({ metadata: pod("a", "x").metadata } as Pod)).toThrow(TypeError);
    expect(names(store.by("job", "x"))).toEqual(["a"]);
  });

  test("no reader can change what the others see", () => {
    const store = podStore();
    store.put(pod("a", "x"));
    const found = store.get("n/a");
    expect(() => found?.spec.labels.push("mine")).toThrow(TypeError);
    expect(() => Object.assign(found?.spec ?? {}, { job: "y" })).toThrow(TypeError);
  });
});

test("a key names an object, with a namespace or without", () => {
  for (const key of ["n/a", "node-1"]) expect(keyOf({ metadata: parseKey(key) })).toBe(key);
});
