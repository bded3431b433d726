/** How charts are looked at, as it stands in an address. Pure. */
import type { Axis } from "./series";

/** From where to where, on the axis that is shown; null: all. */
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

/** Take what is understood of an address; the rest is as if it were not there. */
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
