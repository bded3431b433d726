/** Formats numbers, sizes, durations and times. Pure; names include units. */

const SIZES = ["B", "KiB", "MiB", "GiB", "TiB"];

export function bytes(count: number | null | undefined): string {
  if (count == null) return "–";
  let value = count;
  let unit = 0;
  while (value >= 1024 && unit < SIZES.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${value >= 100 || unit === 0 ? value.toFixed(0) : value.toFixed(1)} ${SIZES[unit]}`;
}

/** `4.2s`, `3m 20s`, `2h 5m`, `3d 4h`; the command line writes the same. */
export function duration(seconds: number | null | undefined): string {
  if (seconds == null || !Number.isFinite(seconds)) return "–";
  const s = Math.max(0, seconds);
  const whole = Math.round(s);
  if (whole < 10) return `${Number(s.toFixed(1))}s`;
  if (whole < 60) return `${whole}s`;
  if (whole < 3600) return two(Math.floor(whole / 60), "m", whole % 60, "s");
  if (whole < 86400) return two(Math.floor(whole / 3600), "h", Math.floor((whole % 3600) / 60), "m");
  return two(Math.floor(whole / 86400), "d", Math.floor((whole % 86400) / 3600), "h");
}

function two(large: number, unit: string, small: number, below: string): string {
  return small === 0 ? `${large}${unit}` : `${large}${unit} ${small}${below}`;
}

/** A metric value: four significant digits, with an exponent where useful. */
export function number(value: number | string | null | undefined): string {
  if (value == null) return "–";
  if (typeof value === "string") return value;
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-3) return value.toExponential(2).replace("e+", "e");
  if (Number.isInteger(value)) return value.toLocaleString("en-US");
  if (size >= 1000) return Math.round(value).toLocaleString("en-US");
  return String(Number(value.toPrecision(4)));
}

export function percent(part: number, whole: number): number {
  return whole > 0 ? Math.min(100, Math.max(0, (100 * part) / whole)) : 0;
}

export function ago(at: string, now: number): string {
  const seconds = (now - Date.parse(at)) / 1000;
  if (seconds < 5) return "now";
  if (seconds < 60) return `${Math.floor(seconds)}s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)}m ago`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)}h ago`;
  return `${Math.floor(seconds / 86400)}d ago`;
}

export function localTime(at: string): string {
  const when = new Date(at);
  const today = new Date().toDateString() === when.toDateString();
  const time = when.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
  return today ? time : `${when.toLocaleDateString([], { month: "short", day: "numeric" })} ${time}`;
}

export function utcTime(at: string): string {
  return `${new Date(at).toISOString().slice(0, 19).replace("T", " ")} UTC`;
}

/** Run time of a task in seconds: finished attempts plus the current one. */
export function ranSeconds(
  task: { ran_s?: number; status: string; started_at?: string | null },
  now: number,
): number | null {
  const ended = task.ran_s ?? 0;
  if (task.status === "running" && task.started_at)
    return ended + Math.max(0, (now - Date.parse(task.started_at)) / 1000);
  return ended > 0 ? ended : null;
}

/** A rounded count: `135 M`, `1.5 B`. */
export function count(value: number): string {
  for (const [size, unit] of [
    [1e9, "B"],
    [1e6, "M"],
    [1e3, "k"],
  ] as const)
    if (value >= size) return `${Number((value / size).toPrecision(value / size >= 100 ? 3 : 2))} ${unit}`;
  return String(value);
}
