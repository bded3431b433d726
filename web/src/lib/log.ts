/** A log as lines with levels, that grows at its end and can be read back. Pure. */

export type Level = "error" | "warning" | "";

export interface Line {
  text: string;
  level: Level;
}

export interface Held {
  lines: readonly Line[];
  /** What has come of a line that has not ended. */
  rest: string;
  /** So many lines at its beginning were let go. */
  dropped: number;
}

export const NOTHING: Held = { lines: [], rest: "", dropped: 0 };
/** A line that never ends is cut at its beginning. */
const LONGEST_REST = 64 * 1024;

/** A progress bar writes over its line by carriage returns: what stands at the end is what a terminal shows. */
function shown(line: string): string {
  const end = line.endsWith("\r") ? line.slice(0, -1) : line;
  return end.slice(end.lastIndexOf("\r") + 1);
}

function lineOf(written: string): Line {
  const text = shown(written);
  return { text, level: levelOf(text) };
}

/** What was written behind what is held; of more than `most` lines the oldest are let go. */
export function appended(held: Held, piece: string, most: number): Held {
  const parts = (held.rest + piece).split("\n");
  const rest = (parts.pop() ?? "").slice(-LONGEST_REST);
  const lines = [...held.lines, ...parts.map(lineOf)];
  const over = Math.max(0, lines.length - most);
  return { lines: over ? lines.slice(over) : lines, rest, dropped: held.dropped + over };
}

/** What was written before what is held; the two may meet within a line. */
export function prepended(held: Held, piece: string): Held {
  const parts = piece.split("\n");
  const last = parts.pop() ?? "";
  const [first, ...others] = held.lines;
  if (!first) return { ...held, lines: parts.map(lineOf), rest: last + held.rest };
  return { ...held, lines: [...parts.map(lineOf), lineOf(last + first.text), ...others] };
}

/** All that is held, with the line that has not ended. */
export function allLines(held: Held): readonly Line[] {
  return held.rest ? [...held.lines, lineOf(held.rest)] : held.lines;
}

export function levelOf(line: string): Level {
  if (/\b(ERROR|CRITICAL|FATAL)\b|^Traceback |^\w*(Error|Exception)\b/.test(line)) return "error";
  if (/\bWARN(ING)?\b|Warning:/.test(line)) return "warning";
  return "";
}
