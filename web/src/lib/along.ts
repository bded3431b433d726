/** Files uploaded with a task, sent again with a workflow file that still refers to them. Pure. */
import { parse } from "yaml";

/** Task name → pointer into its spec → digest. */
export type Inputs = Record<string, Record<string, string>>;

/** A task as submitted: `inputs` maps its pointers to digests. */
export interface Submitted {
  name: string;
  spec: unknown;
  inputs?: Record<string, string>;
}

/** What the spec itself refers to on the server is not uploaded again. */
const NAMED = /(^|\.)artifact$/;

/** The inputs of a workflow file made from earlier tasks; a changed file name overrides them. */
export function inputsOf(text: string, earlier: readonly Submitted[]): Inputs {
  const found: Inputs = {};
  for (const [name, spec] of specsIn(text)) {
    // A workflow file with one task may rename it.
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
    // Incomplete text has no tasks; the editor shows its errors.
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
