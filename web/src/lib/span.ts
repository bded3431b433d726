/** Maps a time span to the width of a drawing. Pure. */

export interface Span {
  from: number;
  to: number;
  /** The time after which nothing has happened since: the rest of the width is at another scale. */
  quiet?: number;
}

const LEAST_MS = 1000;
/** The largest share of the width without an event. */
const MOST_QUIET = 0.25;
/** Round lengths of time, in seconds. */
export const STEPS_S = [
  1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 604800,
];

/** The span from the first to the last of some times, with a margin at the end; `now`: it reaches to then instead. */
export function spanOf(moments: readonly (string | null | undefined)[], now?: number): Span | null {
  const times = moments.flatMap((each) => (each ? [Date.parse(each)] : []));
  if (times.length === 0) return null;
  const from = Math.min(...times);
  const last = from + Math.max(LEAST_MS, Math.max(...times) - from);
  if (now === undefined || now <= last) return { from, to: from + (last - from) * 1.03 };
  return (now - last) / (now - from) > MOST_QUIET ? { from, to: now, quiet: last } : { from, to: now };
}

/** Position of a time, in percent of the width. */
export function placeOf(span: Span, at: string | number): number {
  const time = typeof at === "number" ? at : Date.parse(at);
  const { from, to, quiet = to } = span;
  const events = quiet === to ? 1 : 1 - MOST_QUIET;
  const share =
    time <= quiet ? (events * (time - from)) / (quiet - from) : events + ((1 - events) * (time - quiet)) / (to - quiet);
  return Math.min(100, Math.max(0, 100 * share));
}

/** Position and width of an interval; an open one extends to the edge. */
export function bandOf(span: Span, from: string, to: string | null | undefined): { left: string; width: string } {
  const left = placeOf(span, from);
  return { left: `${left}%`, width: `${(to ? placeOf(span, to) : 100) - left}%` };
}

/** Round local times within a span, up to a maximum count; none where nothing has happened. */
export function ticksOf({ from, to: end, quiet: to = end }: Span, most: number): number[] {
  const seconds = STEPS_S.find((each) => (to - from) / (each * 1000) <= most) ?? Math.ceil((to - from) / most / 1000);
  const step = seconds * 1000;
  const shift = new Date(from).getTimezoneOffset() * 60_000;
  const first = Math.ceil((from - shift) / step) * step + shift;
  const found: number[] = [];
  for (let at = first; at <= to; at += step) found.push(at);
  return found;
}

/** Label of a tick: date and time as precise as the span requires. */
export function tickText(at: number, { from, to: end, quiet: to = end }: Span): string {
  const when = new Date(at);
  const days = when.toLocaleDateString([], { month: "short", day: "numeric" });
  const hours = when.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false });
  if (to - from > 4 * 86_400_000) return days;
  if (to - from > 86_400_000) return `${days} ${hours}`;
  if (to - from > 600_000) return hours;
  return when.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
}
