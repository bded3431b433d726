/** Shared settings of several charts. */
import type { ReactNode } from "react";
import { type ChartSearch, type ChartView, MOST_SMOOTH, searchOf, viewOf } from "../lib/chartview";
import { useAddressed } from "./addressed";

/** Chart settings of a page; `tell` writes them to the URL. */
export function useChartView(
  search: ChartSearch,
  tell: (to: ChartSearch) => void,
): [ChartView, (to: ChartView) => void] {
  const [view, setView] = useAddressed(viewOf(search), (next) => tell(searchOf(next)));
  // Round as the URL does; otherwise the values read back would differ.
  return [view, (next) => setView(viewOf(searchOf(next)))];
}

export function ChartBar({
  view,
  onChange,
  children,
}: {
  view: ChartView;
  onChange: (view: ChartView) => void;
  children?: ReactNode;
}) {
  const { axis, log, weight, zoom } = view;
  return (
    <div className="row small">
      <div className="row tight" role="group" aria-label="Axis">
        {(["step", "time"] as const).map((each) => (
          <button
            key={each}
            type="button"
            aria-pressed={axis === each}
            onClick={() => onChange({ ...view, axis: each, zoom: axis === each ? zoom : null })}
          >
            {each === "step" ? "Steps" : "Time"}
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
      <span className="muted hide-phone">Drag on a chart to zoom all charts.</span>
    </div>
  );
}
