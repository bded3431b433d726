/** Values at the cursor: in the legend of each chart, and in a tooltip of the one under the pointer. */
import { useSyncExternalStore } from "react";
import { type Highlight, type Line, pointAt } from "../lib/charts";
import { duration, localTime, number } from "../lib/format";
import type { Marker } from "../lib/markers";
import type { Axis, Column } from "../lib/series";
import { AXIS_NAMES, symbolOf } from "./ChartCanvas";

/** A line as it is shown: its values, and the smoothed ones. */
export interface ShownLine extends Line {
  calm?: Column;
}

export interface Cursor {
  x: number;
  left: number;
  top: number;
  /** The pointer or the keyboard is on this chart. */
  own: boolean;
}

/** The cursor of one chart: its legend and tooltip follow it, and nothing else is rendered again. */
export class CursorStore {
  private now: Cursor | null = null;
  private readonly listeners = new Set<() => void>();

  get = (): Cursor | null => this.now;

  set(next: Cursor | null): void {
    if (next === this.now) return;
    this.now = next;
    for (const listener of this.listeners) listener();
  }

  subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };
}

interface At {
  axis: Axis;
  clock?: boolean;
}

export function positionText(x: number, { axis, clock }: At): string {
  if (clock) return localTime(new Date(x * 1000).toISOString());
  return `${AXIS_NAMES[axis]} ${axis === "time" ? duration(x) : number(x)}`;
}

export function Legend({ lines, cursor, ...at }: { lines: readonly ShownLine[]; cursor: CursorStore } & At) {
  const now = useSyncExternalStore(cursor.subscribe, cursor.get);
  return (
    <div className="legend num">
      {lines.map((line) => (
        <span key={line.label}>
          <i className={line.dashed ? "dashed" : undefined} style={{ color: line.color }} />
          {lines.length > 1 && `${line.label} `}
          <b>{number(now ? shownAt(line, now.x)?.y : last(line))}</b>
        </span>
      ))}
      {now && <span className="position">{positionText(now.x, at)}</span>}
    </div>
  );
}

/** Distance in pixels at which a marker is under the cursor. */
const NEAR_PX = 7;
const WIDTH_PX = 230;

export function Tooltip({
  lines,
  cursor,
  markers,
  highlight,
  pxOf,
  width,
  ...at
}: {
  lines: readonly ShownLine[];
  cursor: CursorStore;
  markers: readonly Marker[];
  highlight: Highlight | undefined;
  /** Pixel of a position, within the plot. */
  pxOf: (x: number) => number;
  /** Of the plot, in pixels. */
  width: () => number;
} & At) {
  const now = useSyncExternalStore(cursor.subscribe, cursor.get);
  if (!now?.own) return null;
  const near = (x: number) => Math.abs(pxOf(x) - now.left) <= NEAR_PX;
  const flip = now.left + WIDTH_PX > width();
  return (
    <div
      className={`tooltip num${flip ? " flip" : ""}`}
      style={{ transform: `translate(${now.left}px, ${now.top}px)` }}
      aria-hidden="true"
    >
      <div>
        <strong>{positionText(now.x, at)}</strong>
        {lines.map((line) => {
          const found = shownAt(line, now.x);
          if (!found) return null;
          const raw = line.calm ? pointAt(line, now.x)?.y : undefined;
          return (
            <div key={line.label} className="line">
              <i className={line.dashed ? "dashed" : undefined} style={{ color: line.color }} />
              <span className="name">
                {line.label}
                {found.x !== now.x && ` at ${number(found.x)}`}
                {line.raw && <code>{line.raw}</code>}
              </span>
              <span className="value">
                <b>{number(found.y)}</b>
                {raw != null && <small>raw {number(raw)}</small>}
              </span>
            </div>
          );
        })}
        {markers
          .filter(({ x }) => near(x))
          .map(({ kind, label }) => (
            <div key={label} className={`happened ${kind}`}>
              {symbolOf(kind)} {label}
            </div>
          ))}
        {highlight && near(highlight.x) && (
          <div className="happened">
            ○ {highlight.label}: {number(highlight.y)}
          </div>
        )}
      </div>
    </div>
  );
}

/** What a line shows at a position, smoothed if it is. */
function shownAt(line: ShownLine, x: number) {
  return pointAt(line.calm ? { ...line, column: line.calm } : line, x);
}

function last(line: ShownLine): number | null {
  return (line.calm ?? line.column).ys.findLast((y) => y !== null) ?? null;
}
