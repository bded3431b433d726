/** Files that came along with a task when it was submitted, sent again with a document that still names them. Pure. */
import { parse } from "yaml";

/** Task name → pointer into its spec → digest. */
export type Inputs = Record<string, Record<string, string>>;

/** A task as it was submitted: `inputs` holds what its pointers stood for. */
export interface Submitted {
  name: string;
  spec: unknown;
  inputs?: Record<string, string>;
}

/** What the spec itself names on the server needs not come along. */
const NAMED = /(^|\.)artifact$/;

/** The inputs of a document that was made of earlier tasks; where it names another file by now, that one is meant. */
export function inputsOf(text: string, earlier: readonly Submitted[]): Inputs {
  const found: Inputs = {};
  for (const [name, spec] of specsIn(text)) {
    // A document of one task may give it another name.
    const before = earlier.length === 1 ? earlier[0] : earlier.find((each) => each.name === name);
    const kept = Object.entries(before?.inputs ?? {}).filter(
      ([pointer]) => !NAMED.test(pointer) && same(valueAt(spec, pointer), valueAt(before?.spec, pointer)),
    );
    if (kept.length) found[name] = Object.fromEntries(kept);
  }
  return found;
}

function specsIn(text: string): [string, unknown][] {
  let document: unknown;
  try {
    document = parse(text);
  } catch {
    // Half-written text has no tasks; its faults are shown beside it.
    return [];
  }
  const { metadata, spec } = (document ?? {}) as { metadata?: { name?: unknown }; spec?: Record<string, unknown> };
  const stages = spec?.stages ?? (spec?.graph as Record<string, unknown> | undefined)?.nodes;
  if (Array.isArray(stages)) return stages.map((stage) => [String(stage?.name), stage?.spec]);
  return [[String(metadata?.name), spec]];
}

function valueAt(value: unknown, pointer: string): unknown {
  return pointer
    .split(".")
    .reduce<unknown>(
      (inner, key) =>
        typeof inner === "object" && inner !== null ? (inner as Record<string, unknown>)[key] : undefined,
      value,
    );
}

function same(one: unknown, other: unknown): boolean {
  return JSON.stringify(one) === JSON.stringify(other);
}
