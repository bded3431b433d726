/** The canvas of a chart: axes, lines, markers, zoom and pan. */
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import "../styles/charts.css";
import type { Highlight } from "../lib/charts";
import type { Colors, DrawnLine, Tick } from "../lib/chartsvg";
import { moved, type Zoom, zoomed } from "../lib/chartview";
import { duration } from "../lib/format";
import type { Marker, MarkerKind } from "../lib/markers";
import { logLabels, logTicks, type Range, tickLabels } from "../lib/scale";
import { type Axis, aligned } from "../lib/series";
import { STEPS_S } from "../lib/span";

export const AXIS_NAMES: Readonly<Record<Axis, string>> = {
  step: "Step",
  tokens: "Tokens",
  epoch: "Epoch",
  time: "Elapsed time",
};

/** Tick labels for days, minutes and seconds. */
const CLOCK_TICKS: (string | number | null)[][] = [
  [86400, "{MMM} {D}", null, null, null, null, null, null, 1],
  [60, "{HH}:{mm}", null, null, null, null, null, null, 1],
  [1, "{HH}:{mm}:{ss}", null, null, null, null, null, null, 1],
];
const COUNTS = Array.from({ length: 16 }, (_, power) => [1, 2, 5].map((each) => each * 10 ** power)).flat();
const DURATIONS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, ...STEPS_S, 1_209_600, 2_592_000, 7_776_000];
const FONT = "11px system-ui";
const LEAST_DRAG_PX = 4;
/** A point so near is at the cursor: a line of few points does not show one from elsewhere. */
const REACH_PX = 30;
const TALL_PX = 400;
/** A line of so many points is drawn thin: it shows more, and a thin stroke is much cheaper. */
const DENSE = 1000;
const WHEEL_ZOOM = 1.2;
const WHEEL_REST_MS = 150;
const KEY_PAN = 0.2;
const KEY_ZOOM = 2;
const SYNC_KEY = "charts";

/** What a canvas shows now; read at each drawing, so that a change needs no new canvas. */
export interface Shown {
  y: Range;
  zoom: Zoom;
  /** The whole x range. */
  whole: Range;
  markers: readonly Marker[];
  highlight: Highlight | undefined;
  colors: Colors;
}

export interface Config {
  lines: readonly DrawnLine[];
  axis: Axis;
  clock: boolean;
  log: boolean;
  yLabel: string;
}

export interface Ticks {
  x: Tick[];
  y: Tick[];
}

export interface Cursor {
  /** The nearest point of this chart, if the cursor is its own; otherwise the position of the cursor. */
  x: number;
  /** Distance within which a point is at the cursor. */
  reach: number;
  left: number;
  top: number;
  /** The pointer or the keyboard is on this chart. */
  own: boolean;
}

export interface Handlers {
  shown: () => Shown;
  /** Whether the chart is on screen; others do not follow the cursor. */
  visible: () => boolean;
  onZoom: (zoom: Zoom) => void;
  /** The range while it is moved: all charts draw it, and nothing else is rendered; `onZoom` ends it. */
  onMove: (zoom: Zoom) => void;
  /** Whether the pointer or the keyboard is on this chart. */
  own: () => boolean;
  /** null: the cursor has left. */
  onCursor: (at: Cursor | null) => void;
}

export function dataOf(lines: readonly DrawnLine[], log: boolean): uPlot.AlignedData {
  const { xs, ys } = aligned(lines.map((line) => line.column));
  // A logarithmic scale has no zero or negative values.
  const shown = log ? ys.map((row) => row.map((y) => (typeof y === "number" && y <= 0 ? null : y))) : ys;
  return [xs, ...shown] as uPlot.AlignedData;
}

export function xLabelOf({ axis, clock }: Pick<Config, "axis" | "clock">): string {
  return clock ? "Time" : AXIS_NAMES[axis];
}

/** Create the canvas within an element; `ticks` receives what the axes show. */
export function createCanvas(
  element: HTMLElement,
  config: Config,
  data: uPlot.AlignedData,
  handlers: Handlers,
  ticks: Ticks,
): uPlot {
  const { lines, axis, clock, log } = config;
  const { colors } = handlers.shown();
  const grid = { stroke: colors.grid, width: 1 };
  const common = { stroke: colors.muted, grid, ticks: { show: false }, font: FONT, labelFont: FONT };
  // Synchronized charts repeat mouse events; only the one under the pointer zooms.
  let pressed = false;
  const made = new uPlot(
    {
      width: element.clientWidth,
      height: element.clientHeight,
      padding: [8, 16, 0, 0],
      legend: { show: false },
      cursor: {
        sync: { key: SYNC_KEY, filters: { sub: () => handlers.visible() && !panning } },
        drag: { x: true, y: false, setScale: false },
        points: { size: 6 },
        hover: { prox: REACH_PX },
        // At the same height in another chart, it means another value.
        y: false,
        bind: {
          mousedown: (u, _target, handler) => (event) => {
            if (event.shiftKey) pan(u, event, handlers);
            else {
              pressed = true;
              handler(event);
            }
            return null;
          },
        },
      },
      scales: {
        x: { time: clock, range: () => [...(handlers.shown().zoom ?? handlers.shown().whole)] },
        y: { distr: log ? 3 : 1, range: () => [...handlers.shown().y] },
      },
      axes: [
        {
          ...common,
          size: 24,
          space: axis === "time" ? 84 : 64,
          label: xLabelOf(config),
          labelSize: 16,
          labelGap: 0,
          ...(clock
            ? { values: CLOCK_TICKS }
            : {
                ...(axis === "time" ? { incrs: DURATIONS } : axis === "epoch" ? {} : { incrs: COUNTS }),
                values: (_: uPlot, at: number[]) =>
                  kept(
                    ticks,
                    "x",
                    at,
                    axis === "time" ? at.map((each) => (each === 0 ? "0" : duration(each))) : tickLabels(at),
                  ),
              }),
        },
        {
          ...common,
          size: 50,
          space: (u) => (u.height > TALL_PX ? 60 : 34),
          label: config.yLabel,
          labelSize: 16,
          labelGap: 0,
          ...(log
            ? { splits: (_: uPlot, __: number, low: number, high: number) => logTicks(low, high), filter: all }
            : {}),
          values: (_, at) => kept(ticks, "y", at, log ? logLabels(at) : tickLabels(at)),
        },
      ],
      series: [
        {},
        ...lines.map((line) => ({
          label: line.label,
          stroke: line.faint ? `${line.color}55` : line.color,
          width: line.faint || line.column.xs.length > DENSE ? 1 : 1.6,
          dash: line.dashed ? [6, 4] : undefined,
          spanGaps: false,
          points: { show: line.dots === true, size: 5 },
        })),
      ],
      hooks: {
        draw: [(u) => drawMarkers(u, handlers.shown())],
        setCursor: [
          (u) => {
            const { left = -1, top = -1, idx } = u.cursor;
            if (left < 0 || panning) handlers.onCursor(null);
            else {
              const own = handlers.own();
              const at = u.posToVal(left, "x");
              const reach = u.posToVal(left + REACH_PX, "x") - at;
              const place = axis === "step" || axis === "tokens" ? Math.round(at) : at;
              handlers.onCursor({ x: (own && idx != null ? u.data[0][idx] : null) ?? place, reach, left, top, own });
            }
          },
        ],
        setSelect: [
          (u) => {
            if (!pressed) return;
            pressed = false;
            if (u.select.width < LEAST_DRAG_PX) return;
            const low = u.posToVal(u.select.left, "x");
            const high = u.posToVal(u.select.left + u.select.width, "x");
            u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
            handlers.onZoom([low, high]);
          },
        ],
      },
    },
    data,
    element,
  );
  let wheeled: Zoom = null;
  let timer = 0;
  made.over.addEventListener(
    "wheel",
    (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      const at = made.posToVal(event.offsetX, "x");
      const { zoom, whole } = handlers.shown();
      wheeled = zoomed(zoom ?? whole, whole, event.deltaY > 0 ? WHEEL_ZOOM : 1 / WHEEL_ZOOM, at);
      handlers.onMove(wheeled);
      window.clearTimeout(timer);
      timer = window.setTimeout(() => handlers.onZoom(wheeled), WHEEL_REST_MS);
    },
    { passive: false },
  );
  return made;
}

/** Arrow keys move the cursor, with Shift the shown range; + and − zoom, 0 shows all. Returns whether a key is one. */
export function onKey(u: uPlot, event: React.KeyboardEvent, { shown, onZoom }: Handlers): boolean {
  const { zoom, whole } = shown();
  const range = zoom ?? whole;
  const xs = u.data[0];
  const middle = (range[0] + range[1]) / 2;
  const at = u.cursor.left !== undefined && u.cursor.left >= 0 ? u.posToVal(u.cursor.left, "x") : middle;
  const turn = event.key === "ArrowLeft" ? -1 : event.key === "ArrowRight" ? 1 : 0;
  if (turn && event.shiftKey) onZoom(moved(range, whole, turn * KEY_PAN * (range[1] - range[0])));
  else if (turn) {
    const next = Math.min(Math.max(0, u.valToIdx(at) + turn), xs.length - 1);
    moveCursor(u, u.valToPos(xs[next] ?? at, "x"), u.over.clientHeight / 3);
  } else if (event.key === "+" || event.key === "=") onZoom(zoomed(range, whole, 1 / KEY_ZOOM, at));
  else if (event.key === "-") onZoom(zoomed(range, whole, KEY_ZOOM, at));
  else if (event.key === "0") onZoom(null);
  else return false;
  return true;
}

/** Move the cursor of a chart, and with it that of the others; negative: none. */
export function moveCursor(u: uPlot, left: number, top: number): void {
  // The types do not have the third argument, which tells the other charts.
  const set = u.setCursor as (to: { left: number; top: number }, fire: boolean, publish: boolean) => void;
  set({ left, top }, true, true);
}

/** A chart is being moved: the cursors of all rest. */
let panning = false;

/** Follow the pointer until its button is released. */
function pan(u: uPlot, start: MouseEvent, { shown, onZoom, onMove }: Handlers): void {
  start.preventDefault();
  const { zoom, whole } = shown();
  const range = zoom ?? whole;
  const perPx = (range[1] - range[0]) / u.over.clientWidth;
  let next = zoom;
  let frame = 0;
  const move = (event: MouseEvent) => {
    next = moved(range, whole, (start.clientX - event.clientX) * perPx);
    cancelAnimationFrame(frame);
    frame = requestAnimationFrame(() => onMove(next));
  };
  const end = () => {
    cancelAnimationFrame(frame);
    document.removeEventListener("mousemove", move);
    u.over.classList.remove("panning");
    panning = false;
    onZoom(next);
  };
  panning = true;
  moveCursor(u, -10, -10);
  u.over.classList.add("panning");
  document.addEventListener("mousemove", move);
  document.addEventListener("mouseup", end, { once: true });
}

function kept(ticks: Ticks, axis: keyof Ticks, at: readonly (number | null)[], labels: string[]): string[] {
  ticks[axis] = at.flatMap((each, index) => (each === null ? [] : [{ at: each, label: labels[index] ?? "" }]));
  return labels;
}

function all(_: uPlot, splits: number[]): number[] {
  return splits;
}

const SYMBOLS: Readonly<Record<MarkerKind, string>> = { checkpoint: "▲", pause: "Ⅱ", resume: "▶", restart: "↻" };

export function symbolOf(kind: MarkerKind): string {
  return SYMBOLS[kind];
}

/** Checkpoints as ticks on the axis, since a run may have hundreds; the rest as dashed lines with a symbol. */
function drawMarkers(u: uPlot, { markers, highlight, colors }: Shown): void {
  const { ctx, bbox } = u;
  const ratio = uPlot.pxRatio;
  const [left, right, bottom] = [bbox.left, bbox.left + bbox.width, bbox.top + bbox.height];
  ctx.save();
  ctx.lineWidth = ratio;
  ctx.font = `${9 * ratio}px system-ui`;
  for (const [index, { kind, x }] of markers.entries()) {
    const at = Math.round(u.valToPos(x, "x", true));
    ctx.fillStyle = ctx.strokeStyle = colors[kind];
    if (kind === "pause") {
      const resumed = markers.slice(index).find((each) => each.kind === "resume");
      const from = Math.max(left, at);
      const until = resumed ? Math.min(right, u.valToPos(resumed.x, "x", true)) : from;
      ctx.globalAlpha = 0.12;
      if (until > from) ctx.fillRect(from, bbox.top, until - from, bbox.height);
      ctx.globalAlpha = 1;
    }
    if (at < left || at > right) continue;
    if (kind === "checkpoint") {
      ctx.beginPath();
      ctx.moveTo(at, bottom - 7 * ratio);
      ctx.lineTo(at - 4 * ratio, bottom);
      ctx.lineTo(at + 4 * ratio, bottom);
      ctx.fill();
      continue;
    }
    ctx.setLineDash([4 * ratio, 3 * ratio]);
    ctx.beginPath();
    ctx.moveTo(at, bbox.top + 10 * ratio);
    ctx.lineTo(at, bottom);
    ctx.stroke();
    // A run is paused and resumed at the same step.
    ctx.textAlign = kind === "pause" ? "right" : kind === "resume" ? "left" : "center";
    ctx.fillText(SYMBOLS[kind], at, bbox.top + 7 * ratio);
  }
  if (highlight) {
    const [x, y] = [u.valToPos(highlight.x, "x", true), u.valToPos(highlight.y, "y", true)];
    if (x >= left && x <= right) {
      ctx.setLineDash([]);
      ctx.strokeStyle = colors.text;
      ctx.lineWidth = 1.5 * ratio;
      ctx.beginPath();
      ctx.arc(x, y, 6 * ratio, 0, 2 * Math.PI);
      ctx.stroke();
    }
  }
  ctx.restore();
}

const VARIABLES: Readonly<Record<keyof Colors, string>> = {
  background: "--surface",
  text: "--text",
  muted: "--muted",
  grid: "--line",
  checkpoint: "--muted",
  pause: "--warn",
  resume: "--good",
  restart: "--bad",
};

/** A canvas cannot use CSS variables: read the computed colours. */
export function colorsOf(element: HTMLElement): Colors {
  const probe = element.appendChild(document.createElement("i"));
  const found = Object.entries(VARIABLES).map(([name, variable]) => {
    probe.style.color = `var(${variable})`;
    return [name, getComputedStyle(probe).color];
  });
  probe.remove();
  return Object.fromEntries(found) as Colors;
}
