/** A line chart on a canvas: zoom and cursor shared between charts, smoothing, outliers, markers, and files of it. */
import { type ReactNode, useEffect, useMemo, useRef, useState } from "react";
import type uPlot from "uplot";
import { csvOf, type Highlight, type Line } from "../lib/charts";
import { type Colors, type DrawnLine, SIZE, svgOf } from "../lib/chartsvg";
import type { Zoom } from "../lib/chartview";
import type { Marker } from "../lib/markers";
import { withUnit } from "../lib/metrics";
import { outlierBounds, type Range, rangeOf } from "../lib/scale";
import { type Axis, type Column, smoothed } from "../lib/series";
import {
  type Config,
  colorsOf,
  createCanvas,
  dataOf,
  type Handlers,
  moveCursor,
  onKey,
  type Shown,
  type Ticks,
  xLabelOf,
} from "./ChartCanvas";
import { CursorStore, Legend, type ShownLine, Tooltip } from "./ChartLegend";
import { download, fileName } from "./download";
import { Menu } from "./Menu";
import { useIsDark } from "./theme";

export { COLORS, type Line } from "../lib/charts";
export type { Zoom } from "../lib/chartview";

/** Charts this far outside the window are drawn already. */
const NEAR = "100px";
const SCALE = 2;
const NONE: readonly Marker[] = [];
const NO_RANGE: Range = [0, 1];
/** The visible charts of the page, which are moved together: to a range, or `undefined` at the end. */
const visibleCharts = new Set<(zoom: Zoom | undefined) => void>();

export interface ChartProps {
  title: string;
  unit?: string;
  lines: readonly Line[];
  log?: boolean;
  axis: Axis;
  /** Weight of the smoothing; 0: none. */
  weight?: number;
  zoom: Zoom;
  onZoom: (zoom: Zoom) => void;
  height?: number;
  /** The x axis is unix time, shown as the time of day. */
  clock?: boolean;
  /** The x range that the charts of a page share; default: that of the lines. */
  extent?: Range | null;
  markers?: readonly Marker[];
  highlight?: Highlight;
  /** More items of its menu. */
  actions?: ReactNode;
  /** Its heading is below that of a group. */
  grouped?: boolean;
  /** Fills its place. */
  full?: boolean;
}

export function Chart(props: ChartProps) {
  const [large, setLarge] = useState(false);
  return (
    <>
      <Figure {...props} onLarge={() => setLarge(true)} />
      {large && <Large {...props} onClose={() => setLarge(false)} />}
    </>
  );
}

/** The chart in a dialog of the size of the window. */
function Large({ onClose, ...props }: ChartProps & { onClose: () => void }) {
  const box = useRef<HTMLDialogElement>(null);
  useEffect(() => box.current?.showModal(), []);
  return (
    <dialog ref={box} className="large-chart" aria-label={props.title} onClose={onClose}>
      <Figure {...props} full onClose={() => box.current?.close()} />
    </dialog>
  );
}

function Figure({
  title,
  unit,
  lines,
  log = false,
  axis,
  weight = 0,
  zoom,
  onZoom,
  height = 210,
  clock = false,
  extent,
  markers = NONE,
  highlight,
  actions,
  grouped,
  full,
  onLarge,
  onClose,
}: ChartProps & { onLarge?: () => void; onClose?: () => void }) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot>(null);
  const ticks = useRef<Ticks>({ x: [], y: [] });
  const [cursor] = useState(() => new CursorStore());
  const [all, setAll] = useState(false);
  const dark = useIsDark();
  const visible = useVisible(box);
  const [seen, setSeen] = useState(false);
  if (visible && !seen) setSeen(true);

  const shownLines = useMemo(() => lines.map((line) => calmed(line, weight, !all && !log)), [lines, weight, all, log]);
  const whole = useMemo(() => extent ?? extentOf(lines), [extent, lines]);
  // An invisible chart prepares nothing.
  const range = useMemo(
    () => (visible ? rangeOf(columnsOf(lines), zoom, { all, log }) : null),
    [visible, lines, zoom, all, log],
  );
  const drawn = useMemo(() => shownLines.flatMap(drawnLines), [shownLines]);
  const data = useMemo(() => (seen ? dataOf(drawn, log) : null), [seen, drawn, log]);
  const label = withUnit(title, unit);
  const config: Config = { lines: drawn, axis, clock, log, yLabel: unit ?? title };

  const colors = useRef<Colors>(null);
  const now = useRef<Omit<Shown, "colors">>({ y: NO_RANGE, zoom, whole, markers, highlight });
  // While the range is moved, what else is rendered keeps it.
  const moving = useRef<Zoom | undefined>(undefined);
  now.current =
    moving.current === undefined
      ? { y: yOf(range, log), zoom, whole, markers, highlight }
      : { ...now.current, markers, highlight };
  const tell = useRef({ onZoom, visible });
  tell.current = { onZoom, visible };
  const handlers = useMemo(
    (): Handlers => ({
      shown: () => {
        if (!colors.current) throw new Error("a chart without a canvas has no colours");
        return { ...now.current, colors: colors.current };
      },
      visible: () => tell.current.visible,
      onZoom: (next) => {
        for (const move of visibleCharts) move(undefined);
        tell.current.onZoom(next);
      },
      onMove: (next) => {
        for (const move of visibleCharts) move(next);
      },
      own: () => plot.current?.over.matches(":hover") === true || box.current?.matches(":focus-visible") === true,
      onCursor: (at) => cursor.set(at),
    }),
    [cursor],
  );

  // Plot configuration apart from data: only a change here creates a new plot.
  const shape = JSON.stringify([
    drawn.map(({ column: _, ...line }) => line),
    { log, axis, clock, dark, seen, yLabel: config.yLabel },
  ]);
  const latest = useRef(data);
  latest.current = data;
  // biome-ignore lint/correctness/useExhaustiveDependencies: `shape` stands for the configuration
  useEffect(() => {
    const place = box.current;
    if (!place || !latest.current) return;
    colors.current = colorsOf(place);
    const made = createCanvas(place, config, latest.current, handlers, ticks.current);
    plot.current = made;
    const watch = new ResizeObserver(() => made.setSize({ width: place.clientWidth, height: place.clientHeight }));
    watch.observe(place);
    return () => {
      watch.disconnect();
      made.destroy();
      plot.current = null;
      cursor.set(null);
    };
  }, [shape]);
  // biome-ignore lint/correctness/useExhaustiveDependencies: zoom and range are read at each drawing
  useEffect(() => {
    if (visible && data) plot.current?.setData(data);
  }, [visible, data, zoom, whole, range]);
  const ranged = useRef({ lines, all, log });
  ranged.current = { lines, all, log };
  useEffect(() => {
    if (!visible) return;
    const move = (next: Zoom | undefined) => {
      moving.current = next;
      if (next === undefined || !latest.current) return;
      const { lines: mine, ...how } = ranged.current;
      now.current = { ...now.current, zoom: next, y: yOf(rangeOf(columnsOf(mine), next, how), how.log) };
      plot.current?.setData(latest.current);
    };
    visibleCharts.add(move);
    return () => {
      visibleCharts.delete(move);
      moving.current = undefined;
    };
  }, [visible]);
  // biome-ignore lint/correctness/useExhaustiveDependencies: markers are read at each drawing
  useEffect(() => plot.current?.redraw(false), [markers, highlight]);

  const position = { axis, clock };
  const Heading = grouped ? "h3" : "h2";
  return (
    <figure className={full ? "chart full" : "chart"}>
      <header>
        <Heading title={label}>{label}</Heading>
        <span className="tools">
          {onLarge && (
            <button
              type="button"
              className="quiet"
              aria-label={`Full screen: ${title}`}
              title="Full screen"
              onClick={onLarge}
            >
              <span aria-hidden="true">⤢</span>
            </button>
          )}
          <Menu label={`Actions: ${title}`}>
            <button
              type="button"
              onClick={() => setAll(!all)}
              disabled={log}
              title={log ? "A logarithmic axis shows all positive values" : undefined}
            >
              {all ? "Fit y axis without outliers" : "Fit y axis to all values"}
            </button>
            {(["PNG", "SVG", "CSV"] as const).map((kind) => (
              <button key={kind} type="button" disabled={!seen} onClick={() => void save(kind)}>
                Download {kind}
              </button>
            ))}
            {actions}
          </Menu>
          {onClose && (
            <button type="button" onClick={onClose}>
              Close
            </button>
          )}
        </span>
      </header>
      <Legend title={title} lines={shownLines} cursor={cursor} />
      <div
        ref={box}
        role="group"
        className="canvas"
        style={full ? undefined : { height }}
        tabIndex={0}
        aria-label={`${label} by ${xLabelOf(position)}. Arrow keys move the cursor, plus and minus zoom, 0 resets.`}
        onDoubleClick={() => onZoom(null)}
        onBlur={() => plot.current && moveCursor(plot.current, -10, -10)}
        onKeyDown={(event) => {
          if (plot.current && onKey(plot.current, event, handlers)) event.preventDefault();
        }}
      >
        <div className="over">
          <Tooltip {...{ cursor, markers, highlight, plot }} lines={shownLines} {...position} />
          {range && log && range.below > 0 && <span className="outside">{`${range.below} at or below 0`}</span>}
          {range && !log && range.above + range.below > 0 && (
            <button type="button" className="outside" onClick={() => setAll(true)}>
              {outsideText(range.above, range.below)}
            </button>
          )}
        </div>
      </div>
    </figure>
  );

  async function save(kind: "PNG" | "SVG" | "CSV"): Promise<void> {
    const name = `${fileName(title)}.${kind.toLowerCase()}`;
    const xLabel = xLabelOf(position);
    if (kind === "CSV") {
      download(name, new Blob([csvOf(lines, xLabel)], { type: "text/csv" }));
      return;
    }
    const shown = handlers.shown();
    const svg = svgOf({
      title: label,
      x: { label: xLabel, range: shown.zoom ?? shown.whole, ticks: ticks.current.x },
      y: { label: config.yLabel, range: shown.y, ticks: ticks.current.y, log },
      lines: drawn,
      markers,
      highlight,
      colors: shown.colors,
    });
    const image = new Blob([svg], { type: "image/svg+xml" });
    download(name, kind === "SVG" ? image : await rendered(svg));
  }
}

/** The PNG of an SVG image. */
async function rendered(svg: string): Promise<Blob> {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = SIZE.width * SCALE;
  canvas.height = SIZE.height * SCALE;
  canvas.getContext("2d")?.drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done, failed) =>
    canvas.toBlob(
      (blob) => (blob ? done(blob) : failed(new Error("The browser has no PNG of this chart."))),
      "image/png",
    ),
  );
}

function outsideText(above: number, below: number): string {
  const parts = [above > 0 && `${above} above`, below > 0 && `${below} below`].filter(Boolean);
  return `${parts.join(", ")} · Show all`;
}

function calmed(line: Line, weight: number, bounded: boolean): ShownLine {
  if (weight === 0 || line.dots) return line;
  // What the y axis leaves out does not pull the smoothed line either.
  const bounds = bounded ? outlierBounds(line.column.ys) : null;
  return { ...line, calm: { xs: line.column.xs, ys: smoothed(line.column, weight, line.spacing, bounds) } };
}

function drawnLines({ label, color, column, dots, dashed, calm }: ShownLine): DrawnLine[] {
  const line = { label, color, column, dots, dashed };
  return calm
    ? [
        { ...line, label: `${label} (raw)`, faint: true },
        { ...line, column: calm },
      ]
    : [line];
}

function yOf(range: { low: number; high: number } | null, log: boolean): Range {
  if (!range) return log ? [1, 10] : NO_RANGE;
  return [range.low, range.high];
}

function columnsOf(lines: readonly Line[]): Column[] {
  return lines.map(({ column }) => column);
}

function extentOf(lines: readonly Line[]): Range {
  const low = Math.min(...lines.map(({ column }) => column.xs[0] ?? Number.POSITIVE_INFINITY));
  const high = Math.max(...lines.map(({ column }) => column.xs.at(-1) ?? Number.NEGATIVE_INFINITY));
  if (low > high) return [0, 1];
  return low === high ? [low - 1, high + 1] : [low, high];
}

/** Whether an element is in the window, or near it. */
function useVisible(box: { current: HTMLElement | null }): boolean {
  const [visible, setVisible] = useState(false);
  useEffect(() => {
    if (!box.current) return;
    const watch = new IntersectionObserver(([entry]) => setVisible(entry?.isIntersecting === true), {
      rootMargin: NEAR,
    });
    watch.observe(box.current);
    return () => watch.disconnect();
  }, [box]);
  return visible;
}
