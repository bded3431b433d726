/** Chart settings: in the URL, and as the user's preference. Pure. */
import { AXES, type Axis } from "./series";

/** Range on the shown axis; null: all. */
export type Zoom = readonly [number, number] | null;

export interface ChartSearch {
  axis?: Axis;
  log?: boolean;
  smooth?: number;
  zoom?: string;
}

export interface ChartView {
  axis: Axis;
  log: boolean;
  weight: number;
  zoom: Zoom;
}

export const MOST_SMOOTH = 0.98;
/** A zoom shows at least this share of the whole range. */
const LEAST_ZOOM = 1e-5;

/** Parse the valid parts of the URL and ignore the rest. */
export function chartSearch(given: Record<string, unknown>): ChartSearch {
  const smooth = Number(given.smooth);
  return {
    axis: AXES.find((each) => each === given.axis && each !== "step"),
    log: given.log === true || undefined,
    smooth: smooth > 0 && smooth <= MOST_SMOOTH ? smooth : undefined,
    zoom: typeof given.zoom === "string" && zoomOf(given.zoom) ? given.zoom : undefined,
  };
}

/** @param smooth The user's preference, for a URL without one. */
export function viewOf(search: ChartSearch, smooth: number): ChartView {
  return {
    axis: search.axis ?? "step",
    log: search.log ?? false,
    weight: search.smooth ?? smooth,
    zoom: zoomOf(search.zoom),
  };
}

export function searchOf({ axis, log, weight, zoom }: ChartView): ChartSearch {
  const short = (at: number) => String(Number(at.toPrecision(7)));
  return {
    axis: axis === "step" ? undefined : axis,
    log: log || undefined,
    smooth: weight || undefined,
    zoom: zoom ? `${short(zoom[0])}~${short(zoom[1])}` : undefined,
  };
}

/** A range enlarged or reduced around a position, within the whole; null: the whole. */
export function zoomed(
  range: readonly [number, number],
  whole: readonly [number, number],
  factor: number,
  at: number,
): Zoom {
  const least = (whole[1] - whole[0]) * LEAST_ZOOM;
  const size = Math.max(least, (range[1] - range[0]) * factor);
  if (size >= whole[1] - whole[0]) return null;
  const low = at - ((at - range[0]) / (range[1] - range[0])) * size;
  return inside(low, size, whole);
}

/** A range moved by a distance, within the whole. */
export function moved(range: readonly [number, number], whole: readonly [number, number], by: number): Zoom {
  const size = range[1] - range[0];
  return size >= whole[1] - whole[0] ? null : inside(range[0] + by, size, whole);
}

function inside(low: number, size: number, [first, last]: readonly [number, number]): Zoom {
  const from = Math.min(Math.max(low, first), last - size);
  return [from, from + size];
}

function zoomOf(text: string | undefined): Zoom {
  const [low, high, more] = (text ?? "").split("~").map(Number);
  if (low === undefined || high === undefined || more !== undefined) return null;
  return Number.isFinite(low) && Number.isFinite(high) && low < high ? [low, high] : null;
}
