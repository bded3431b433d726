/** Ranges and tick labels of chart axes. Pure. */
import { atOrAfter, type Column } from "./series";

export type Range = readonly [low: number, high: number];

export interface Shown {
  low: number;
  high: number;
  /** Number of points above and below; on a logarithmic axis, those that are not positive are below. */
  above: number;
  below: number;
}

/** Share of the points at each end that may be outliers. */
const RARE = 0.02;
/** A range has outliers if it becomes so many times smaller without them. */
const SHRINKS = 3;
/** Room that points next to the core are given, as a multiple of its size. */
const NEAR = 1;
/** With fewer points, each of them matters. */
const FEWEST = 30;
/** Enough values to know how they are distributed. */
const SAMPLE = 512;
const MARGIN = 0.06;

/** The range of values without rare and distant ones; null if there are none of these. */
export function outlierBounds(ys: readonly (number | null | undefined)[], from = 0, to = ys.length): Range | null {
  const step = Math.max(1, Math.floor((to - from) / SAMPLE));
  const values: number[] = [];
  for (let at = from; at < to; at += step) {
    const y = ys[at];
    if (typeof y === "number") values.push(y);
  }
  if (values.length < FEWEST) return null;
  let [least, most] = [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY];
  for (let at = from; at < to; at += 1) {
    const y = ys[at];
    if (typeof y !== "number") continue;
    if (y < least) least = y;
    if (y > most) most = y;
  }
  values.sort((a, b) => a - b);
  const rare = Math.ceil(values.length * RARE);
  const [low, high] = [values[rare] ?? least, values[values.length - 1 - rare] ?? most];
  const room = (high - low) * NEAR;
  // Values that are constant but for a few have no range to compare with.
  if (room === 0 || most - least <= SHRINKS * (high - low)) return null;
  const bounds = [Math.max(least, low - room), Math.min(most, high + room)] as const;
  return bounds[0] === least && bounds[1] === most ? null : bounds;
}

/**
 * The y range of a chart: all values, but for the outliers of each line. A logarithmic axis has room for outliers, and
 * none for zero and less.
 *
 * @param within Shown positions; null: all.
 * @param all Outliers too.
 */
export function rangeOf(
  columns: readonly Column[],
  within: Range | null,
  { all = false, log = false }: { all?: boolean; log?: boolean } = {},
): Shown | null {
  let [low, high] = [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY];
  const parts = columns.map(({ xs, ys }) => {
    // The neighbours outside are drawn up to the edge.
    const from = within ? Math.max(0, atOrAfter(xs, within[0]) - 1) : 0;
    const to = within ? Math.min(xs.length, atOrAfter(xs, within[1]) + 1) : xs.length;
    const bounds = all || log ? null : outlierBounds(ys, from, to);
    for (let at = from; at < to; at += 1) {
      const y = ys[at];
      if (typeof y !== "number" || (log && y <= 0) || (bounds && (y < bounds[0] || y > bounds[1]))) continue;
      if (y < low) low = y;
      if (y > high) high = y;
    }
    return { ys, from, to };
  });
  if (low > high) return null;
  let [above, below] = [0, 0];
  for (const { ys, from, to } of parts)
    for (let at = from; at < to; at += 1) {
      const y = ys[at];
      if (typeof y !== "number") continue;
      if (y > high) above += 1;
      else if (y < low) below += 1;
    }
  if (log) {
    const factor = low === high ? 2 : (high / low) ** MARGIN;
    return { low: low / factor, high: high * factor, above, below };
  }
  // A constant gets a range in which it does not look like noise.
  const margin = (high - low) * MARGIN || Math.abs(high) * 0.1 || 1;
  // A negative tick below values that cannot be negative raises questions.
  const bottom = low >= 0 && low < margin ? -margin / 3 : low - margin;
  return { low: bottom, high: high + margin, above, below };
}

/** Ticks of a logarithmic axis: decades, 1-2-5 if there are few of these, round numbers within one decade. */
export function logTicks(low: number, high: number): number[] {
  const decades: number[] = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) decades.push(power);
  const within = (factors: readonly number[]) =>
    decades
      .flatMap((power) => factors.map((factor) => Number(`${factor}e${power}`)))
      .filter((tick) => tick >= low && tick <= high);
  const whole = within([1]);
  if (whole.length > 3) {
    const every = Math.ceil(whole.length / 6);
    return whole.filter((_, at) => at % every === 0);
  }
  const finer = within([1, 2, 5]);
  return finer.length > 2 ? finer : roundTicks(low, high);
}

/** Round values within a range, about four. */
export function roundTicks(low: number, high: number): number[] {
  const rough = (high - low) / 4;
  const power = Math.floor(Math.log10(rough));
  const factor = [1, 2, 5, 10].find((each) => each * 10 ** power >= rough) ?? 10;
  const step = factor * 10 ** power;
  const first = Math.ceil(low / step);
  const count = Math.max(0, Math.floor(high / step) - first + 1);
  return Array.from({ length: count }, (_, at) => Number(((first + at) * step).toPrecision(12)));
}

const UNITS = [
  [1e12, "T"],
  [1e9, "B"],
  [1e6, "M"],
  [1e3, "k"],
] as const;
/** More decimals than that are harder to read than the whole number. */
const FEW_DECIMALS = 2;
const MOST_DECIMALS = 8;

/** Labels of ticks, with as many digits as distinguish them. */
export function tickLabels(ticks: readonly (number | null)[]): string[] {
  const known = ticks.filter((tick) => tick !== null && tick !== 0) as number[];
  const most = Math.max(...known.map(Math.abs), 0);
  if (most > 0 && (most < 1e-3 || most >= 1e15)) return ticks.map((tick) => exponent(tick, most));
  const decimals = (size: number) => Math.max(0, ...known.map((tick) => decimalsOf(tick / size)));
  const [size, suffix] = UNITS.find(([each]) => most >= each * 10 && decimals(each) <= FEW_DECIMALS) ?? [1, ""];
  const digits = decimals(size);
  return ticks.map((tick) => {
    if (tick === null) return "";
    if (tick === 0) return "0";
    const fixed = { minimumFractionDigits: digits, maximumFractionDigits: digits };
    return `${(tick / size).toLocaleString("en-US", fixed)}${suffix}`;
  });
}

/** Labels of logarithmic ticks: each with the digits that it has. */
export function logLabels(ticks: readonly (number | null)[]): string[] {
  return ticks.map((tick) => tickLabels([tick])[0] ?? "");
}

function decimalsOf(value: number): number {
  for (let digits = 0; digits < MOST_DECIMALS; digits += 1) {
    const scaled = Math.abs(value) * 10 ** digits;
    if (Math.abs(scaled - Math.round(scaled)) < 1e-6 * Math.max(1, scaled)) return digits;
  }
  return MOST_DECIMALS;
}

function exponent(tick: number | null, most: number): string {
  if (tick === null) return "";
  if (Math.abs(tick) < most * 1e-9) return "0";
  return Number(tick.toPrecision(6)).toExponential().replace("e+", "e");
}
