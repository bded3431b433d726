/** Shared settings of several charts. */
import type { ReactNode } from "react";
import { type ChartSearch, type ChartView, MOST_SMOOTH, searchOf, viewOf } from "../lib/chartview";
import type { Axis } from "../lib/series";
import { useAddressed } from "./addressed";
import { isNumber, useStored } from "./stored";

/** Chart settings of a page; `tell` writes them to the URL. Smoothing is kept for the user's other charts. */
export function useChartView(
  search: ChartSearch,
  tell: (to: ChartSearch) => void,
): [ChartView, (to: ChartView) => void] {
  const [smooth, setSmooth] = useStored<number>("smoothing", 0, isNumber);
  const [view, setView] = useAddressed(viewOf(search, smooth), (next) => {
    if (next.weight !== smooth) setSmooth(next.weight);
    tell(searchOf(next));
  });
  // Round as the URL does; otherwise the values read back would differ.
  return [view, (next) => setView(viewOf(searchOf(next), next.weight))];
}

const AXIS_LABELS: Readonly<Record<Axis, string>> = { step: "Steps", tokens: "Tokens", epoch: "Epochs", time: "Time" };
const ALWAYS: readonly Axis[] = ["step", "time"];

export function ChartBar({
  view,
  onChange,
  axes = ALWAYS,
  children,
}: {
  view: ChartView;
  onChange: (view: ChartView) => void;
  /** Axes for which there is data. */
  axes?: readonly Axis[];
  children?: ReactNode;
}) {
  const { axis, log, weight, zoom } = view;
  return (
    <div className="row small">
      <div className="row tight" role="group" aria-label="X axis">
        {axes.map((each) => (
          <button
            key={each}
            type="button"
            aria-pressed={axis === each}
            onClick={() => onChange({ ...view, axis: each, zoom: axis === each ? zoom : null })}
          >
            {AXIS_LABELS[each]}
          </button>
        ))}
      </div>
      <button type="button" aria-pressed={log} onClick={() => onChange({ ...view, log: !log })}>
        Log scale
      </button>
      <label className="row tight">
        Smoothing
        <input
          type="range"
          min="0"
          max={MOST_SMOOTH}
          step="0.02"
          value={weight}
          onChange={(event) => onChange({ ...view, weight: Number(event.target.value) })}
        />
        <span className="num muted" style={{ width: "2.4em" }}>
          {weight.toFixed(2)}
        </span>
      </label>
      {children}
      <button type="button" onClick={() => onChange({ ...view, zoom: null })} disabled={!zoom}>
        Reset zoom
      </button>
      <span className="muted hide-phone">Drag to zoom, Shift and drag to move.</span>
    </div>
  );
}
