/** A line chart on a canvas: zoom shared between charts, legend that follows the pointer. */
import { useEffect, useMemo, useRef, useState } from "react";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import type { Zoom } from "../lib/chartview";
import { duration, localTime, number } from "../lib/format";
import { type Axis, aligned, type Column } from "../lib/series";
import { useIsDark } from "./theme";

export type { Zoom } from "../lib/chartview";

export interface Line {
  label: string;
  color: string;
  column: Column;
  /** Drawn thin and pale: raw values of a smoothed line. */
  faint?: boolean;
  /** Few points: drawn with dots. */
  dots?: boolean;
}

/** Colours that are distinguishable on light and dark, and with common colour blindness. */
export const COLORS = ["#3f7ff0", "#e07b1a", "#2f9e6b", "#c24f9d", "#8a6cf5", "#a58b0f", "#1a93a8", "#d85050"];

/** Tick labels for days, minutes and seconds. */
const CLOCK_TICKS: (string | number | null)[][] = [
  [86400, "{MMM} {D}", null, null, null, null, null, null, 1],
  [60, "{HH}:{mm}", null, null, null, null, null, null, 1],
  [1, "{HH}:{mm}:{ss}", null, null, null, null, null, null, 1],
];

export function Chart({
  title,
  lines,
  log,
  axis,
  zoom,
  onZoom,
  height = 190,
  clock,
}: {
  title: string;
  lines: readonly Line[];
  log?: boolean;
  axis: Axis;
  zoom: Zoom;
  onZoom: (zoom: Zoom) => void;
  height?: number;
  /** The x axis is unix time, shown as the time of day. */
  clock?: boolean;
}) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot>(null);
  const zoomed = useRef(zoom);
  const tellZoom = useRef(onZoom);
  const [at, setAt] = useState<number | null>(null);
  const dark = useIsDark();
  zoomed.current = zoom;
  tellZoom.current = onZoom;

  const data = useMemo(() => {
    const { xs, ys } = aligned(lines.map((line) => line.column));
    // A logarithmic scale has no zero or negative values.
    const shown = log ? ys.map((row) => row.map((y) => (typeof y === "number" && y <= 0 ? null : y))) : ys;
    return [xs, ...shown] as uPlot.AlignedData;
  }, [lines, log]);
  const latest = useRef(data);
  latest.current = data;
  // Plot configuration apart from data: only a change here creates a new plot.
  const shape = JSON.stringify([
    lines.map(({ label, color, faint, dots }) => [label, color, faint, dots]),
    log,
    axis,
    dark,
    height,
    clock,
  ]);

  // biome-ignore lint/correctness/useExhaustiveDependencies: `shape` stands for the lines
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    // A canvas cannot use CSS variables: read the computed colours.
    const { color, borderTopColor } = getComputedStyle(element);
    const grid = { stroke: borderTopColor, width: 1 };
    const common = { stroke: color, grid, ticks: { show: false }, font: "11px system-ui" };
    const made = new uPlot(
      {
        width: element.clientWidth,
        height,
        padding: [8, 22, 0, 0],
        legend: { show: false },
        cursor: { sync: { key: "charts" }, drag: { x: true, y: false, setScale: false }, points: { size: 6 } },
        scales: {
          x: {
            time: clock === true,
            range: (_, low, high) => (zoomed.current ? [...zoomed.current] : widened(low, high)),
          },
          y: { distr: log ? 3 : 1 },
        },
        axes: [
          {
            ...common,
            size: 26,
            space: 70,
            ...(clock
              ? { values: CLOCK_TICKS }
              : {
                  values: (_: uPlot, ticks: number[]) =>
                    ticks.map((tick) => (axis === "time" ? duration(tick) : number(tick))),
                }),
          },
          {
            ...common,
            size: 54,
            space: 34,
            values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : number(tick))),
          },
        ],
        series: [
          {},
          ...lines.map((line) => ({
            label: line.label,
            stroke: line.faint ? `${line.color}55` : line.color,
            width: line.faint ? 1 : 1.6,
            spanGaps: false,
            points: { show: line.dots === true, size: 5 },
          })),
        ],
        hooks: {
          setCursor: [(u) => setAt(u.cursor.idx ?? null)],
          setSelect: [
            (u) => {
              if (u.select.width < 4) return;
              const low = u.posToVal(u.select.left, "x");
              const high = u.posToVal(u.select.left + u.select.width, "x");
              u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
              tellZoom.current([low, high]);
            },
          ],
        },
      },
      latest.current,
      element,
    );
    plot.current = made;
    const watch = new ResizeObserver(() => made.setSize({ width: element.clientWidth, height }));
    watch.observe(element);
    return () => {
      watch.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [shape]);

  useEffect(() => plot.current?.setData(data), [data]);
  // biome-ignore lint/correctness/useExhaustiveDependencies: a new zoom is read by the scale's range
  useEffect(() => plot.current?.setData(latest.current), [zoom]);

  return (
    <figure className="chart">
      <header>
        <h2>{title}</h2>
        <Legend lines={lines} data={data} at={at} axis={axis} clock={clock} />
      </header>
      {/* biome-ignore lint/a11y/noStaticElementInteractions: the same is done by the button "whole range" */}
      <div ref={box} className="canvas" style={{ height }} onDoubleClick={() => onZoom(null)} />
    </figure>
  );
}

function widened(low: number, high: number): uPlot.Range.MinMax {
  return low === high ? [low - 1, high + 1] : [low, high];
}

function Legend({
  lines,
  data,
  at,
  axis,
  clock,
}: {
  lines: readonly Line[];
  data: uPlot.AlignedData;
  at: number | null;
  axis: Axis;
  clock?: boolean;
}) {
  const x = at === null ? undefined : data[0][at];
  return (
    <div className="legend num">
      {x !== undefined && (
        <span>
          {clock ? localTime(new Date(x * 1000).toISOString()) : axis === "time" ? duration(x) : `step ${number(x)}`}
        </span>
      )}
      {lines.map((line, index) => {
        if (line.faint) return null;
        const row = data[index + 1] ?? [];
        const value = at === null ? last(row) : row[at];
        return (
          <span key={line.label}>
            <i style={{ background: line.color }} />
            {lines.length > 1 && `${line.label} `}
            <b>{number(value)}</b>
          </span>
        );
      })}
    </div>
  );
}

function last(row: ArrayLike<number | null | undefined>): number | null {
  for (let at = row.length - 1; at >= 0; at -= 1) {
    const value = row[at];
    if (typeof value === "number") return value;
  }
  return null;
}
