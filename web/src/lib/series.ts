/** Arithmetic on series of metrics: columns for the charts, smoothing, perplexity. Pure. */

export interface Point {
  step: number;
  at: string;
  values: Record<string, number | string>;
}

export interface Column {
  /** Steps, or seconds since the first point; ascending, without repeats. */
  xs: number[];
  ys: (number | null)[];
}

export type Axis = "step" | "time";

/** Extract one metric; for equal x values the later point wins. Non-finite values become gaps. */
export function column(points: readonly Point[], name: string, axis: Axis): Column {
  const start = points[0] ? Date.parse(points[0].at) : 0;
  const found: [number, number | null][] = [];
  for (const point of points) {
    const value = point.values[name];
    if (value === undefined) continue;
    const x = axis === "step" ? point.step : (Date.parse(point.at) - start) / 1000;
    found.push([x, typeof value === "number" && Number.isFinite(value) ? value : null]);
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

/** Exponential moving average with bias correction; `weight` 0 returns the values unchanged. */
export function smoothed(ys: readonly (number | null)[], weight: number): (number | null)[] {
  if (weight <= 0) return [...ys];
  let last = 0;
  let seen = 0;
  return ys.map((y) => {
    if (y === null) return null;
    last = last * weight + (1 - weight) * y;
    seen += 1;
    return last / (1 - weight ** seen);
  });
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
  for (const { step, at, values } of fresh) {
    let place = points.length;
    while (place > 0 && (points[place - 1]?.step ?? step) > step) place -= 1;
    const same = points[place - 1];
    if (same?.step === step) points[place - 1] = { ...same, values: { ...same.values, ...values } };
    else points.splice(place, 0, { step, at, values });
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
