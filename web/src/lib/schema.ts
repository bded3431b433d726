/** The fields allowed at a position of a workflow file, from its JSON Schema. Pure. */

export interface SchemaNode {
  $ref?: string;
  $defs?: Record<string, SchemaNode>;
  description?: string;
  type?: string;
  const?: unknown;
  enum?: unknown[];
  default?: unknown;
  properties?: Record<string, SchemaNode>;
  additionalProperties?: boolean | SchemaNode;
  items?: SchemaNode;
  anyOf?: SchemaNode[];
  oneOf?: SchemaNode[];
  allOf?: SchemaNode[];
  if?: SchemaNode;
  then?: SchemaNode;
  else?: SchemaNode;
  discriminator?: { propertyName: string; mapping: Record<string, string> };
}

export interface Field {
  name: string;
  about: string;
  node: SchemaNode;
}

export interface Place {
  /** Keys from the root to the mapping that contains the line. */
  path: string[];
  /** The key whose value is being written, if the position is after its colon. */
  key: string | null;
  /** The text typed so far. */
  typed: string;
  taskType: string | null;
}

/** Determined from the indentation; no parser, because unfinished text does not parse. */
export function placeAt(text: string, position: number): Place {
  const before = text.slice(0, position);
  const lines = before.split("\n");
  const line = lines.pop() ?? "";
  const written = /^(\s*(?:- )*)(?:([\w.$-]+):\s+)?(\S*)$/.exec(line);
  let indent = written?.[1]?.length ?? 0;
  const path: string[] = [];
  for (const above of lines.toReversed()) {
    const found = /^(\s*(?:- )*)([\w.$-]+):\s*(.*)$/.exec(above);
    if (!found) continue;
    const its = found[1]?.length ?? 0;
    if (its < indent && (found[3] === "" || found[3]?.startsWith("#"))) {
      path.unshift(found[2] ?? "");
      indent = its;
    }
    if (indent === 0) break;
  }
  return { path, key: written?.[2] ?? null, typed: written?.[3] ?? "", taskType: kindNear(text, before) };
}

function kindNear(text: string, before: string): string | null {
  const pattern = /^\s*(?:- )?taskType:\s*(\w+)/gm;
  const above = [...before.matchAll(pattern)].at(-1)?.[1];
  return above ?? pattern.exec(text)?.[1] ?? null;
}

/** The fields of the mapping at a path. */
export function fieldsAt(root: SchemaNode, place: Pick<Place, "path" | "taskType">): Field[] {
  let nodes = forms(root, root, place.taskType);
  for (const key of place.path) {
    nodes = nodes.flatMap((node) => {
      const next =
        node.properties?.[key] ??
        (typeof node.additionalProperties === "object" ? node.additionalProperties : undefined);
      return next ? forms(root, next, place.taskType) : [];
    });
  }
  const found = new Map<string, Field>();
  for (const node of nodes)
    for (const [name, inner] of Object.entries(node.properties ?? {}))
      if (!found.has(name)) found.set(name, { name, about: aboutOf(root, inner), node: inner });
  return [...found.values()];
}

/** The possible values of a field, if they can be enumerated. */
export function valuesAt(root: SchemaNode, place: Place): string[] {
  const field = fieldsAt(root, place).find((each) => each.name === place.key);
  if (!field) return [];
  const values = forms(root, field.node, place.taskType).flatMap((node) => [
    ...(node.enum ?? []),
    ...(node.const === undefined ? [] : [node.const]),
    ...(node.type === "boolean" ? [true, false] : []),
  ]);
  return [...new Set(values.filter((value) => value !== null).map(String))];
}

function aboutOf(root: SchemaNode, node: SchemaNode): string {
  return node.description ?? (node.$ref ? (resolve(root, node.$ref)?.description ?? "") : "");
}

function resolve(root: SchemaNode, ref: string): SchemaNode | undefined {
  return root.$defs?.[ref.slice(ref.lastIndexOf("/") + 1)];
}

/** All possible schemas of a node: references resolved, alternatives expanded, list items included. */
function forms(root: SchemaNode, node: SchemaNode, taskType: string | null, depth = 0): SchemaNode[] {
  if (depth > 12) return [];
  const into = (next: SchemaNode) => forms(root, next, taskType, depth + 1);
  if (node.$ref) {
    const target = resolve(root, node.$ref);
    return target ? into(target) : [];
  }
  const chosen =
    taskType && node.discriminator?.propertyName === "taskType" ? node.discriminator.mapping[taskType] : undefined;
  const branches = chosen ? [{ $ref: chosen }] : (node.oneOf ?? []);
  const more = [...branches, ...(node.anyOf ?? []), ...(node.allOf ?? []), node.then, node.else, node.items];
  return [node, ...more.filter((each) => each !== undefined).flatMap(into)];
}
