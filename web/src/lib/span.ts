/** Maps a time span to the width of a drawing. Pure. */

export interface Span {
  from: number;
  to: number;
}

const LEAST_MS = 1000;
const STEPS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 604800];

/** The span from the first to the last of some times, with a margin at the end; `now`: it reaches at least to then. */
export function spanOf(moments: readonly (string | null | undefined)[], now?: number): Span | null {
  const times = moments.flatMap((each) => (each ? [Date.parse(each)] : []));
  if (times.length === 0) return null;
  const from = Math.min(...times);
  const long = Math.max(LEAST_MS, Math.max(...times, now ?? from) - from);
  return { from, to: from + long * 1.03 };
}

/** Position of a time, in percent of the width. */
export function placeOf(span: Span, at: string | number): number {
  const time = typeof at === "number" ? at : Date.parse(at);
  return Math.min(100, Math.max(0, (100 * (time - span.from)) / (span.to - span.from)));
}

/** Position and width of an interval; an open one extends to the edge. */
export function bandOf(span: Span, from: string, to: string | null | undefined): { left: string; width: string } {
  const left = placeOf(span, from);
  return { left: `${left}%`, width: `${(to ? placeOf(span, to) : 100) - left}%` };
}

/** Round local times within a span, up to a maximum count. */
export function ticksOf({ from, to }: Span, most: number): number[] {
  const seconds = STEPS_S.find((each) => (to - from) / (each * 1000) <= most) ?? Math.ceil((to - from) / most / 1000);
  const step = seconds * 1000;
  const shift = new Date(from).getTimezoneOffset() * 60_000;
  const first = Math.ceil((from - shift) / step) * step + shift;
  const found: number[] = [];
  for (let at = first; at <= to; at += step) found.push(at);
  return found;
}

/** Label of a tick: date and time as precise as the span requires. */
export function tickText(at: number, { from, to }: Span): string {
  const when = new Date(at);
  const days = when.toLocaleDateString([], { month: "short", day: "numeric" });
  const hours = when.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false });
  if (to - from > 4 * 86_400_000) return days;
  if (to - from > 86_400_000) return `${days} ${hours}`;
  if (to - from > 600_000) return hours;
  return when.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
}
