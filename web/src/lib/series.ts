/** Arithmetic on series of metrics: columns for the charts, smoothing, perplexity. Pure. */
import { otherName } from "./metrics";

export interface Point {
  step: number;
  epoch?: number | null;
  at: string;
  values: Record<string, number | string>;
}

export interface Column {
  /** Positions on the axis; ascending, without repeats. */
  xs: number[];
  ys: (number | null)[];
}

/** `time`: seconds since the first point. */
export const AXES = ["step", "tokens", "epoch", "time"] as const;
export type Axis = (typeof AXES)[number];

/** Names under which trainers log the tokens that they have read. */
const TOKENS = ["num_input_tokens_seen", "num_tokens"];

/** The position of a step that was logged at a time (ms); null if it is not on the axis. */
export type Place = (step: number, at: number) => number | null;

/** The axes on which a run can be drawn. */
export function axesOf(points: readonly Point[]): Axis[] {
  return AXES.filter((axis) => axis === "step" || axis === "time" || measured(points, axis).length > 1);
}

/**
 * Map steps to positions. Epochs and tokens are logged at some steps and interpolated between them: an evaluation logs
 * neither.
 *
 * @param start Origin of the time axis; default: the first point.
 */
export function placeOf(points: readonly Point[], axis: Axis, start?: string): Place {
  if (axis === "step") return (step) => step;
  if (axis === "time") {
    const origin = Date.parse(start ?? points[0]?.at ?? "");
    return (_, at) => (at - origin) / 1000;
  }
  const known = measured(points, axis);
  const steps = known.map(([step]) => step);
  return (step) => {
    if (known.length < 2) return null;
    // Beyond the last one, the pace of the last two goes on.
    const high = Math.min(Math.max(1, atOrAfter(steps, step)), known.length - 1);
    const [from, below] = known[high - 1] ?? [0, 0];
    const [to, above] = known[high] ?? [0, 0];
    return below + ((above - below) * (step - from)) / (to - from);
  };
}

/** Step and epoch, or step and tokens, where they are logged; both begin at zero. */
function measured(points: readonly Point[], axis: Axis): [number, number][] {
  const name = axis === "tokens" ? TOKENS.find((each) => points.some((point) => each in point.values)) : undefined;
  const found: [number, number][] = [[0, 0]];
  for (const point of points) {
    const value = axis === "epoch" ? point.epoch : name ? point.values[name] : undefined;
    if (typeof value === "number" && point.step > (found.at(-1)?.[0] ?? 0)) found.push([point.step, value]);
  }
  return found;
}

/**
 * Extract one metric; for equal x values the later point wins. Non-finite values become gaps.
 *
 * Evaluations before and after training have another name, and belong to the same column. At a step that has both, the
 * one made during training counts: the one after training may be of another checkpoint.
 */
export function column(points: readonly Point[], name: string, axis: Axis, place = placeOf(points, axis)): Column {
  const other = otherName(name);
  const found: [number, number | null][] = [];
  for (const point of points) {
    const value = point.values[name] ?? (other && point.values[other]);
    if (value === undefined) continue;
    const x = place(point.step, Date.parse(point.at));
    if (x !== null) found.push([x, typeof value === "number" && Number.isFinite(value) ? value : null]);
  }
  found.sort((a, b) => a[0] - b[0]);
  const xs: number[] = [];
  const ys: (number | null)[] = [];
  for (const [x, y] of found) {
    if (xs.at(-1) === x) ys[ys.length - 1] = y;
    else {
      xs.push(x);
      ys.push(y);
    }
  }
  return { xs, ys };
}

/** Mean distance of neighbouring points. */
export function spacingOf({ xs }: Column): number {
  return xs.length < 2 ? 1 : ((xs.at(-1) ?? 0) - (xs[0] ?? 0)) / (xs.length - 1);
}

/**
 * Exponential moving average with bias correction; `weight` 0 returns the values unchanged.
 *
 * A point counts by its distance from the one before, in units of `spacing`: finer points of a zoom, and points that a
 * chart leaves out, do not change the shape. Values outside `bounds` are left out.
 */
export function smoothed(
  { xs, ys }: Column,
  weight: number,
  spacing = spacingOf({ xs, ys }),
  bounds: readonly [number, number] | null = null,
): (number | null)[] {
  if (weight <= 0) return [...ys];
  let sum = 0;
  let share = 0;
  let before: number | undefined;
  return ys.map((y, at) => {
    if (y === null) return null;
    const x = xs[at] ?? 0;
    const kept = weight ** (before === undefined ? 1 : (x - before) / spacing);
    before = x;
    if (!bounds || (y >= bounds[0] && y <= bounds[1])) {
      sum = sum * kept + (1 - kept) * y;
      share = share * kept + 1 - kept;
    }
    return share > 0 ? sum / share : null;
  });
}

/** Index of the point nearest to a position; -1 if none is within `reach`. */
export function nearest({ xs }: Column, x: number, reach: number): number {
  const after = Math.min(atOrAfter(xs, x), xs.length - 1);
  const at = after > 0 && x - (xs[after - 1] ?? 0) < (xs[after] ?? 0) - x ? after - 1 : after;
  return Math.abs((xs[at] ?? Number.POSITIVE_INFINITY) - x) <= reach ? at : -1;
}

/** Index of the first value that is not below another one; the length if there is none. Values ascend. */
export function atOrAfter(values: readonly number[], least: number): number {
  let [low, high] = [0, values.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((values[middle] ?? 0) < least) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Align columns on a common x axis; missing values are `undefined`, which a line skips. */
export function aligned(columns: readonly Column[]): { xs: number[]; ys: (number | null | undefined)[][] } {
  const [only] = columns;
  if (columns.length === 1 && only) return { xs: only.xs, ys: [only.ys] };
  const xs = [...new Set(columns.flatMap((each) => each.xs))].sort((a, b) => a - b);
  const place = new Map(xs.map((x, index) => [x, index]));
  const ys = columns.map((each) => {
    const row = new Array<number | null | undefined>(xs.length).fill(undefined);
    each.xs.forEach((x, index) => {
      const at = place.get(x);
      if (at !== undefined) row[at] = each.ys[index] ?? null;
    });
    return row;
  });
  return { xs, ys };
}

/**
 * Map times (milliseconds, ascending) to steps, interpolated between the logged points before and after.
 * `null`: before the first point, or after the last one.
 */
export function stepsAt(points: readonly Point[], moments: readonly number[]): (number | null)[] {
  const told = points.map((point) => Date.parse(point.at));
  let after = 0;
  return moments.map((moment) => {
    while (after < told.length && (told[after] ?? moment) < moment) after += 1;
    const [low, high] = [points[after - 1], points[after]];
    if (!high) return null;
    const [from, to] = [told[after - 1] ?? 0, told[after] ?? 0];
    if (!low || from === to) return to === moment ? high.step : null;
    return low.step + ((high.step - low.step) * (moment - from)) / (to - from);
  });
}

/** The last value logged at or before a step. */
export function valueAt(points: readonly Point[], name: string, step: number): number | undefined {
  const value = points.findLast((point) => point.step <= step && typeof point.values[name] === "number")?.values[name];
  return typeof value === "number" ? value : undefined;
}

export function perplexity(ys: readonly (number | null)[]): (number | null)[] {
  return ys.map((y) => (y === null || y > 700 ? null : Math.exp(y)));
}

/**
 * Append new points to the known ones, ordered by step.
 *
 * Points after the step that a run resumes from are dropped. Values of a known step are merged into it: a run logs loss
 * and evaluation metrics separately.
 */
export function told(known: readonly Point[], resumedFrom: readonly number[], fresh: readonly Point[]): Point[] {
  const reached = Math.min(...resumedFrom);
  const points = known.filter((point) => !(point.step > reached));
  for (const { step, epoch, at, values } of fresh) {
    let place = points.length;
    while (place > 0 && (points[place - 1]?.step ?? step) > step) place -= 1;
    const same = points[place - 1];
    if (same?.step === step)
      points[place - 1] = { ...same, epoch: epoch ?? same.epoch, values: { ...same.values, ...values } };
    else points.splice(place, 0, { step, epoch, at, values });
  }
  return points;
}

/** CSV table: step, time (UTC), and one column for each metric. */
export function csv(points: readonly Point[], names: readonly string[]): string {
  const cell = (value: number | string | undefined) =>
    typeof value === "string" && /[",\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : String(value ?? "");
  const rows = points.map((point) => [point.step, point.at, ...names.map((name) => point.values[name])].map(cell));
  return [["step", "at", ...names].map(cell), ...rows].map((row) => `${row.join(",")}\n`).join("");
}

/** Dotted paths of all leaves: `{a: {b: 1}}` → `a.b` → `1`. */
export function leaves(value: unknown, path = "", into: Map<string, unknown> = new Map()): Map<string, unknown> {
  if (typeof value === "object" && value !== null && !Array.isArray(value)) {
    for (const [key, inner] of Object.entries(value)) leaves(inner, path ? `${path}.${key}` : key, into);
  } else if (path) into.set(path, value);
  return into;
}
