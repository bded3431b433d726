/** Chart settings as stored in the URL. Pure. */
import type { Axis } from "./series";

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

/** Parse the valid parts of the URL and ignore the rest. */
export function chartSearch(given: Record<string, unknown>): ChartSearch {
  const smooth = Number(given.smooth);
  return {
    axis: given.axis === "time" ? "time" : undefined,
    log: given.log === true || undefined,
    smooth: smooth > 0 && smooth <= MOST_SMOOTH ? smooth : undefined,
    zoom: typeof given.zoom === "string" && zoomOf(given.zoom) ? given.zoom : undefined,
  };
}

export function viewOf({ axis, log, smooth, zoom }: ChartSearch): ChartView {
  return { axis: axis ?? "step", log: log ?? false, weight: smooth ?? 0, zoom: zoomOf(zoom) };
}

export function searchOf({ axis, log, weight, zoom }: ChartView): ChartSearch {
  const short = (at: number) => String(Number(at.toPrecision(7)));
  return {
    axis: axis === "time" ? axis : undefined,
    log: log || undefined,
    smooth: weight || undefined,
    zoom: zoom ? `${short(zoom[0])}~${short(zoom[1])}` : undefined,
  };
}

function zoomOf(text: string | undefined): Zoom {
  const [low, high, more] = (text ?? "").split("~").map(Number);
  if (low === undefined || high === undefined || more !== undefined) return null;
  return Number.isFinite(low) && Number.isFinite(high) && low < high ? [low, high] : null;
}
