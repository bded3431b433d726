/** The charts of a run: grouped, filtered, pinned, with shared zoom, axis and smoothing. */
import { useNavigate, useSearch } from "@tanstack/react-router";
import { useCallback, useEffect, useMemo, useRef, useState } from "react";
import { followPoints } from "../../api/live";
import type { TaskAnswer } from "../../api/schema";
import { type ChartSpec, matching } from "../../lib/charts";
import type { ChartView, Zoom } from "../../lib/chartview";
import { number } from "../../lib/format";
import { MARKER_KINDS, MARKER_NAMES, type Marker, type MarkerKind } from "../../lib/markers";
import { GROUPS } from "../../lib/metrics";
import type { Range } from "../../lib/scale";
import { csv } from "../../lib/series";
import { isFinal } from "../../lib/words";
import { Chart } from "../../parts/Chart";
import { ChartBar, useChartView } from "../../parts/ChartBar";
import { symbolOf } from "../../parts/ChartCanvas";
import { download } from "../../parts/download";
import { Answer, Empty } from "../../parts/states";
import { isTexts, useStored } from "../../parts/stored";
import { useRunCharts } from "./chartdata";

/** What the user has arranged; the same for all runs. */
interface Arranged {
  pinned: string[];
  hidden: string[];
  closed: string[];
  unmarked: MarkerKind[];
}

const FIRST: Arranged = { pinned: [], hidden: [], closed: [], unmarked: [] };
function isArranged(value: unknown): value is Arranged {
  return (
    value !== null && typeof value === "object" && Object.keys(FIRST).every((key) => isTexts(Reflect.get(value, key)))
  );
}

/** With fewer charts, a filter is of no use. */
const MANY = 7;

function toggled<T>(list: readonly T[], item: T): T[] {
  return list.includes(item) ? list.filter((each) => each !== item) : [...list, item];
}

export function Charts({ task }: { task: TaskAnswer }) {
  const search = useSearch({ from: "/tasks/$taskId" });
  const navigate = useNavigate({ from: "/tasks/$taskId" });
  const [view, setView] = useChartView(
    search,
    (to) => void navigate({ search: (old) => ({ ...old, ...to }), replace: true, resetScroll: false }),
  );
  useEffect(() => followPoints([task.id]), [task.id]);
  const [all, setAll] = useState(false);
  const [filter, setFilter] = useState("");
  const [arranged, setArranged] = useStored<Arranged>("charts", FIRST, isArranged);
  const { metrics, charts, markers, axes, axis, extent, points } = useRunCharts(task, view.axis, view.zoom, all);
  const marked = useMemo(
    () => markers.filter(({ kind }) => !arranged.unmarked.includes(kind)),
    [markers, arranged.unmarked],
  );
  const setZoom = useRef<(zoom: Zoom) => void>(() => undefined);
  setZoom.current = (zoom) => setView({ ...view, zoom });
  const onZoom = useCallback((zoom: Zoom) => setZoom.current(zoom), []);
  const found = matching(charts, filter);
  const shown = found.filter(({ id }) => !arranged.hidden.includes(id));
  const hidden = found.filter(({ id }) => arranged.hidden.includes(id));
  const groups = [
    ["pinned", "Pinned", shown.filter(({ id }) => arranged.pinned.includes(id))] as const,
    ...GROUPS.map(
      ([id, title]) =>
        [id, title, shown.filter((chart) => chart.group === id && !arranged.pinned.includes(chart.id))] as const,
    ),
  ].filter(([, , members]) => members.length > 0);
  return (
    <div className="stack">
      <ChartBar view={{ ...view, axis }} onChange={setView} axes={axes}>
        <button type="button" aria-pressed={all} onClick={() => setAll(!all)}>
          All metrics
        </button>
        <button
          type="button"
          disabled={points.length === 0}
          title={metrics.data?.thinned ? "Download the plotted points" : "Download all points"}
          onClick={() =>
            download(`${task.id}.csv`, new Blob([csv(points, metrics.data?.names ?? [])], { type: "text/csv" }))
          }
        >
          CSV
        </button>
      </ChartBar>
      <div className="row small">
        {(charts.length >= MANY || filter) && (
          <input
            type="search"
            aria-label="Filter charts"
            placeholder="Filter charts"
            value={filter}
            onChange={(event) => setFilter(event.target.value)}
          />
        )}
        <MarkerBar
          charts={charts}
          markers={markers}
          unmarked={arranged.unmarked}
          onToggle={(kind) => setArranged({ ...arranged, unmarked: toggled(arranged.unmarked, kind) })}
        />
      </div>
      <Answer query={metrics}>
        {() =>
          charts.length === 0 ? (
            <Empty title="No metrics yet">
              {isFinal(task.status) ? "This run logged no metrics." : "Metrics appear here as the run logs them."}
            </Empty>
          ) : found.length === 0 ? (
            <Empty title="No matching charts">
              <button type="button" onClick={() => setFilter("")}>
                Clear filter
              </button>
            </Empty>
          ) : (
            <>
              {groups.map(([id, title, members]) => (
                <Section
                  key={id}
                  title={title}
                  charts={members}
                  open={!arranged.closed.includes(id) || filter !== ""}
                  onToggle={() => setArranged({ ...arranged, closed: toggled(arranged.closed, id) })}
                  {...{ view: { ...view, axis }, extent, markers: marked, arranged, onZoom, setArranged }}
                />
              ))}
              {hidden.length > 0 && (
                <div className="row small">
                  <span className="muted">Hidden:</span>
                  {hidden.map(({ id, title }) => (
                    <button
                      key={id}
                      type="button"
                      title="Show this chart"
                      onClick={() => setArranged({ ...arranged, hidden: toggled(arranged.hidden, id) })}
                    >
                      {title}
                    </button>
                  ))}
                </div>
              )}
            </>
          )
        }
      </Answer>
    </div>
  );
}

function Section({
  title,
  charts,
  open,
  onToggle,
  view: { axis, log, weight, zoom },
  extent,
  markers,
  arranged,
  setArranged,
  onZoom,
}: {
  title: string;
  charts: readonly ChartSpec[];
  open: boolean;
  onToggle: () => void;
  view: ChartView;
  extent: Range | null;
  markers: readonly Marker[];
  arranged: Arranged;
  setArranged: (next: Arranged) => void;
  onZoom: (zoom: Zoom) => void;
}) {
  return (
    <section className="chart-group" aria-label={title}>
      <h2>
        <button type="button" className="quiet" aria-expanded={open} onClick={onToggle}>
          <span aria-hidden="true">{open ? "▾" : "▸"}</span> {title} <span className="muted num">{charts.length}</span>
        </button>
      </h2>
      {open && (
        <div className="charts">
          {charts.map(({ id, title: name, unit, lines, highlight, separate }) => (
            <Chart
              key={id}
              title={name}
              {...{ unit, lines, log, axis, weight, zoom, onZoom, highlight }}
              extent={separate ? null : extent}
              markers={separate ? undefined : markers}
              grouped
              actions={<Arrange {...{ id, arranged, setArranged }} />}
            />
          ))}
        </div>
      )}
    </section>
  );
}

function Arrange({
  id,
  arranged,
  setArranged,
}: {
  id: string;
  arranged: Arranged;
  setArranged: (next: Arranged) => void;
}) {
  const pinned = arranged.pinned.includes(id);
  return (
    <>
      <button type="button" onClick={() => setArranged({ ...arranged, pinned: toggled(arranged.pinned, id) })}>
        {pinned ? "Unpin" : "Pin to the top"}
      </button>
      <button type="button" onClick={() => setArranged({ ...arranged, hidden: toggled(arranged.hidden, id) })}>
        Hide
      </button>
    </>
  );
}

/** What the markers mean, and which are shown. */
function MarkerBar({
  charts,
  markers,
  unmarked,
  onToggle,
}: {
  charts: readonly ChartSpec[];
  markers: readonly Marker[];
  unmarked: readonly MarkerKind[];
  onToggle: (kind: MarkerKind) => void;
}) {
  const best = charts.find(({ highlight }) => highlight)?.highlight;
  return (
    <>
      {MARKER_KINDS.map((kind) => {
        const count = markers.filter((marker) => marker.kind === kind).length;
        if (count === 0) return null;
        return (
          <button key={kind} type="button" aria-pressed={!unmarked.includes(kind)} onClick={() => onToggle(kind)}>
            <span className={`happened ${kind}`} aria-hidden="true">
              {symbolOf(kind)}
            </span>
            {MARKER_NAMES[kind]} <span className="num">{count}</span>
          </button>
        );
      })}
      {best && (
        <span className="muted num">
          ○ {best.label} <b>{number(best.y)}</b>
        </span>
      )}
    </>
  );
}
