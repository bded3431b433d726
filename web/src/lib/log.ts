/** A log as lines with levels, which grows at the end and can be extended at the start. Pure. */

export type Level = "error" | "warning" | "";

export interface Line {
  text: string;
  level: Level;
}

export interface Held {
  lines: readonly Line[];
  /** The text of the unfinished last line. */
  rest: string;
  /** Number of lines dropped at the start. */
  dropped: number;
}

export const NOTHING: Held = { lines: [], rest: "", dropped: 0 };
/** A line without an end is truncated at the start. */
const LONGEST_REST = 64 * 1024;

/** A progress bar overwrites its line with carriage returns: keep what a terminal would show. */
function shown(line: string): string {
  const end = line.endsWith("\r") ? line.slice(0, -1) : line;
  return end.slice(end.lastIndexOf("\r") + 1);
}

function lineOf(written: string): Line {
  const text = shown(written);
  return { text, level: levelOf(text) };
}

/** Append text; above `most` lines, the oldest are dropped. */
export function appended(held: Held, piece: string, most: number): Held {
  const parts = (held.rest + piece).split("\n");
  const rest = (parts.pop() ?? "").slice(-LONGEST_REST);
  const lines = [...held.lines, ...parts.map(lineOf)];
  const over = Math.max(0, lines.length - most);
  return { lines: over ? lines.slice(over) : lines, rest, dropped: held.dropped + over };
}

/** Prepend earlier text; the boundary may be within a line. */
export function prepended(held: Held, piece: string): Held {
  const parts = piece.split("\n");
  const last = parts.pop() ?? "";
  const [first, ...others] = held.lines;
  if (!first) return { ...held, lines: parts.map(lineOf), rest: last + held.rest };
  return { ...held, lines: [...parts.map(lineOf), lineOf(last + first.text), ...others] };
}

/** All lines, including the unfinished one. */
export function allLines(held: Held): readonly Line[] {
  return held.rest ? [...held.lines, lineOf(held.rest)] : held.lines;
}

export function levelOf(line: string): Level {
  if (/\b(ERROR|CRITICAL|FATAL)\b|^Traceback |^\w*(Error|Exception)\b/.test(line)) return "error";
  if (/\bWARN(ING)?\b|Warning:/.test(line)) return "warning";
  return "";
}
