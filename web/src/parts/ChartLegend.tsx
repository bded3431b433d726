/** Values at the cursor: in the legend of each chart, and in a tooltip of the one under the pointer. */
import { useSyncExternalStore } from "react";
import type uPlot from "uplot";
import { type Highlight, type Line, pointAt } from "../lib/charts";
import { duration, localTime, number } from "../lib/format";
import type { Marker } from "../lib/markers";
import type { Axis, Column } from "../lib/series";
import { AXIS_NAMES, type Cursor, symbolOf } from "./ChartCanvas";

/** A line as it is shown: its values, and the smoothed ones. */
export interface ShownLine extends Line {
  calm?: Column;
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

export function Legend({ title, lines, cursor }: { title: string; lines: readonly ShownLine[]; cursor: CursorStore }) {
  const now = useSyncExternalStore(cursor.subscribe, cursor.get);
  return (
    <div className="legend num">
      {lines.map((line) => (
        <span key={line.label}>
          <i className={line.dashed ? "dashed" : undefined} style={{ color: line.color }} />
          {(lines.length > 1 || !named(title, line)) && `${line.short ?? line.label} `}
          <b>{number(now ? shownAt(line, now.x, now.reach)?.y : last(line))}</b>
        </span>
      ))}
    </div>
  );
}

/** Whether the title says what a line is. */
function named(title: string, { label }: Line): boolean {
  return label.toLowerCase().includes(title.toLowerCase());
}

/** Distance in pixels at which a marker is under the cursor. */
const NEAR_PX = 7;
const GAP_PX = 12;
/** Width of most tooltips, with their distance from the cursor. */
const WIDTH_PX = 260;

/** In the chart under the pointer, all that is known of a position; in the others, the position. */
export function Tooltip({
  lines,
  cursor,
  markers,
  highlight,
  plot,
  ...at
}: {
  lines: readonly ShownLine[];
  cursor: CursorStore;
  markers: readonly Marker[];
  highlight: Highlight | undefined;
  plot: { current: uPlot | null };
} & At) {
  const now = useSyncExternalStore(cursor.subscribe, cursor.get);
  const u = plot.current;
  if (!now || !u) return null;
  if (!now.own)
    return (
      <div className="position num" style={{ left: now.left }} aria-hidden="true">
        {positionText(now.x, at)}
      </div>
    );
  const near = (x: number) => Math.abs(u.valToPos(x, "x") - now.left) <= NEAR_PX;
  const { left, right } = sidesOf(u.over.getBoundingClientRect().left + now.left);
  return (
    <div className="tooltip num" style={{ transform: `translate(${now.left}px, ${now.top}px)` }} aria-hidden="true">
      <div style={{ left, right }}>
        <strong>{positionText(now.x, at)}</strong>
        {lines.map((line) => {
          // With its position, a point may be far away.
          const found = shownAt(line, now.x, Number.POSITIVE_INFINITY);
          if (!found) return null;
          const raw = line.calm ? pointAt(line.column, now.x, Number.POSITIVE_INFINITY)?.y : undefined;
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

/** A tooltip is right of the cursor, left of it near the edge of the window, and within a narrow one. */
function sidesOf(x: number): { left?: number; right?: number } {
  if (x + WIDTH_PX < window.innerWidth) return { left: GAP_PX };
  if (x - WIDTH_PX > 0) return { right: GAP_PX };
  return { left: GAP_PX - x };
}

/** What a line shows at a position, smoothed if it is. */
function shownAt(line: ShownLine, x: number, reach: number) {
  return pointAt(line.calm ?? line.column, x, reach);
}

function last(line: ShownLine): number | null {
  return (line.calm ?? line.column).ys.findLast((y) => y !== null) ?? null;
}
