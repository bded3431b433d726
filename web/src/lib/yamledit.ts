/**
 * Changes one value of a YAML text and nothing else: quotes, brackets and comments are kept.
 *
 * What cannot be changed as text, such as an entry of a mapping in braces, is written by the YAML library, which keeps
 * comments but uses its own style. The result has the same meaning either way.
 */
import { type Document, isMap, isNode, isScalar, type Pair, parseDocument, stringify, type YAMLMap } from "yaml";

export type Path = readonly (string | number)[];

/** Write a value; missing parent mappings are created. */
export function setIn(text: string, path: Path, value: unknown): string {
  return edited(text, (document) => document.setIn(path, value), setAsText(text, path, value));
}

/** Remove a value, and mappings that are empty without it. */
export function removeIn(text: string, path: Path): string {
  const document = parseDocument(text);
  if (!document.hasIn(path)) return text;
  let last = [...path];
  while (last.length > 2) {
    const above = document.getIn(last.slice(0, -1), true);
    if (!isMap(above) || above.items.length > 1) break;
    last = last.slice(0, -1);
  }
  return edited(text, (whole) => whole.deleteIn(last), removeAsText(text, document, last));
}

/** The edited text if it has the intended meaning; otherwise the serialized document. */
function edited(text: string, change: (document: Document) => void, found: string | null): string {
  const document = parseDocument(text);
  change(document);
  const written = document.toString({ lineWidth: 0 });
  if (found === null) return written;
  const tried = parseDocument(found);
  const same = tried.errors.length === 0 && JSON.stringify(tried.toJS()) === JSON.stringify(document.toJS());
  return same ? found : written;
}

function setAsText(text: string, path: Path, value: unknown): string | null {
  const document = parseDocument(text);
  const old = document.getIn(path, true);
  if (isNode(old) && old.range) {
    if (isScalar(old) && old.value === null && old.range[0] === old.range[1]) return null;
    return text.slice(0, old.range[0]) + inline(value) + text.slice(old.range[1]);
  }
  let depth = path.length - 1;
  while (depth > 0 && !document.hasIn(path.slice(0, depth))) depth -= 1;
  const map = document.getIn(path.slice(0, depth), true);
  const last = isMap(map) && !map.flow ? map.items.at(-1) : undefined;
  if (!last) return null;
  const at = endOf(text, last);
  const indent = columnOf(text, map as YAMLMap);
  if (at === null || indent === null) return null;
  return text.slice(0, at) + lines(path.slice(depth), value, indent) + text.slice(at);
}

function lines(keys: Path, value: unknown, indent: number): string {
  const written = keys.map((key, depth) => `\n${" ".repeat(indent + 2 * depth)}${key}:`).join("");
  return `${written} ${inline(value)}`;
}

function inline(value: unknown): string {
  return stringify(value, { collectionStyle: "flow", flowCollectionPadding: false, lineWidth: 0 }).trimEnd();
}

/** Where the line ends on which an entry of a mapping ends. */
function endOf(text: string, pair: Pair): number | null {
  const node = isNode(pair.value) ? pair.value : isNode(pair.key) ? pair.key : null;
  if (!node?.range) return null;
  // A block ends after its last line, a scalar on its own line.
  let end = node.range[1];
  while (end > 0 && text[end - 1] === "\n") end -= 1;
  const next = text.indexOf("\n", end);
  return next === -1 ? text.length : next;
}

function columnOf(text: string, map: YAMLMap): number | null {
  const key = map.items[0]?.key;
  if (!isNode(key) || !key.range) return null;
  return key.range[0] - (text.lastIndexOf("\n", key.range[0] - 1) + 1);
}

function removeAsText(text: string, document: Document, path: Path): string | null {
  const map = document.getIn(path.slice(0, -1), true);
  if (!isMap(map) || map.flow) return null;
  const pair = map.items.find((each) => isScalar(each.key) && each.key.value === path.at(-1));
  const key = pair?.key;
  if (!pair || !isNode(key) || !key.range) return null;
  const from = text.lastIndexOf("\n", key.range[0] - 1) + 1;
  const to = endOf(text, pair);
  // An entry that shares its line with preceding text, such as a list dash, is not a separate line.
  if (to === null || text.slice(from, key.range[0]).trim() !== "") return null;
  return text.slice(0, from) + text.slice(to + 1);
}
