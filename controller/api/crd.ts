/** The CustomResourceDefinition, made from the zod source: `npm run generate` writes it to crds/ and to the chart. */
import { z } from "zod";
import { CEL_RULES, fencedJobSpec, GROUP, KIND, PLURAL, VERSION } from "./spec.ts";
import { fencedJobStatus } from "./status.ts";

type Json = { [key: string]: unknown };

export function customResourceDefinition(): Json {
  const spec = structural(z.toJSONSchema(fencedJobSpec, { io: "input", target: "draft-7" }) as Json);
  // A full pod schema is above 262,144 bytes, breaks client-side apply (D05) and prunes new pod fields: the API server
  // checks the pod in a dry run instead.
  (spec.properties as Json).template = {
    type: "object",
    description: describe(fencedJobSpec.shape.template),
    "x-kubernetes-preserve-unknown-fields": true,
  };
  const root: Json = {
    type: "object",
    description:
      "A job with exactly one writer: one pod owns it at a time, with a generation that only grows, and each database refuses every write of an older one.",
    required: ["spec"],
    properties: {
      apiVersion: { type: "string" },
      kind: { type: "string" },
      metadata: { type: "object" },
      spec,
      status: {
        description: "What the controller has promised and seen; only it writes here.",
        ...structural(z.toJSONSchema(fencedJobStatus, { io: "input", target: "draft-7" }) as Json),
      },
    },
  };
  for (const { path, rule, message } of CEL_RULES) {
    const node = path.reduce<Json>((at, key) => (at.properties as Json)[key] as Json, root);
    const rules = (node["x-kubernetes-validations"] ?? []) as Json[];
    node["x-kubernetes-validations"] = [...rules, { rule, message }];
  }
  const status = (root.properties as { status: Json }).status;
  Object.assign((status.properties as Json).conditions as Json, {
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["type"],
  });
  const column = (name: string, type: string, jsonPath: string, rest: Json = {}): Json => ({
    name,
    type,
    jsonPath,
    ...rest,
  });
  return {
    apiVersion: "apiextensions.k8s.io/v1",
    kind: "CustomResourceDefinition",
    metadata: { name: `${PLURAL}.${GROUP}` },
    spec: {
      group: GROUP,
      scope: "Namespaced",
      names: { kind: KIND, listKind: `${KIND}List`, plural: PLURAL, singular: KIND.toLowerCase(), shortNames: ["fj"] },
      versions: [
        {
          name: VERSION,
          served: true,
          storage: true,
          subresources: { status: {} },
          additionalPrinterColumns: [
            column("Owner", "string", ".status.owner.pod"),
            column("Generation", "integer", ".status.generation"),
            column("Fence", "integer", ".status.fence"),
            column("Status", "string", ".status.summary"),
            column("Age", "date", ".metadata.creationTimestamp"),
            column("Node", "string", ".status.owner.node", { priority: 1 }),
            column("Since", "date", ".status.owner.since", { priority: 1 }),
          ],
          schema: { openAPIV3Schema: root },
        },
      ],
    },
  };
}

function describe(schema: z.ZodType): string {
  return schema.description ?? "";
}

/** JSON Schema → structural schema: what the API server does not take is dropped or put its way. */
function structural(schema: Json): Json {
  const { $schema: _, additionalProperties: __, format, default: fallback, pattern, ...rest } = schema;
  const out: Json = { ...rest };
  if (format === "date-time") out.format = format;
  else if (pattern !== undefined) out.pattern = pattern;
  if (fallback !== undefined) out.default = fallback;
  if (out.type === "integer") out.format = "int64";
  if (out.minimum === Number.MIN_SAFE_INTEGER) delete out.minimum;
  if (out.properties) {
    out.properties = Object.fromEntries(
      Object.entries(out.properties as Record<string, Json>).map(([key, value]) => [key, structural(value)]),
    );
  }
  // The API server checks the rules on the default itself before it fills in the defaults inside.
  if (out.type === "object" && out.default) out.default = defaultsOf(out);
  if (out.items) out.items = structural(out.items as Json);
  return out;
}

function defaultsOf(object: Json): Json {
  const entries = Object.entries((object.properties ?? {}) as Record<string, Json>);
  return Object.fromEntries(
    entries.filter(([, value]) => "default" in value).map(([key, value]) => [key, value.default]),
  );
}
