/** Load metrics of a machine over time. Pure. */

/** The samples of the last hours before the newest; input is ordered. */
export function lastHours<T extends { at: string }>(samples: readonly T[], hours: number): readonly T[] {
  const newest = samples.at(-1);
  if (!newest) return samples;
  const from = Date.parse(newest.at) - hours * 3_600_000;
  const first = samples.findIndex((each) => Date.parse(each.at) >= from);
  return first > 0 ? samples.slice(first) : samples;
}
