/** All series of a run, with shared zoom, axis and smoothing. */
import { useQuery } from "@tanstack/react-query";
import { useNavigate, useSearch } from "@tanstack/react-router";
import { useEffect, useMemo, useState } from "react";
import { followPoints } from "../../api/live";
import { metricsQuery, otherSeriesQuery, rangeQuery } from "../../api/queries";
import type { TaskAnswer } from "../../api/schema";
import type { Zoom } from "../../lib/chartview";
import { csv, type Point } from "../../lib/series";
import { isFinal } from "../../lib/words";
import { ChartBar, useChartView } from "../../parts/ChartBar";
import { Answer, Empty } from "../../parts/states";
import { Drawn } from "./Drawn";
import { Machines } from "./Machine";
import { Other } from "./Other";
import { Taken } from "./Taken";

/** How long the object URL of a download is kept. */
const KEPT_MS = 60_000;

export function Charts({ task }: { task: TaskAnswer }) {
  const search = useSearch({ from: "/tasks/$taskId" });
  const navigate = useNavigate({ from: "/tasks/$taskId" });
  const [view, setView] = useChartView(
    search,
    (to) => void navigate({ search: (old) => ({ ...old, ...to }), replace: true, resetScroll: false }),
  );
  useEffect(() => followPoints([task.id]), [task.id]);
  const metrics = useQuery(metricsQuery(task.id));
  const others = useQuery(otherSeriesQuery(task.id, isFinal(task.status))).data ?? [];
  const start = metrics.data?.points[0]?.at ?? task.started_at ?? undefined;
  const [all, setAll] = useState(false);
  const { axis, zoom } = view;
  const onZoom = (next: Zoom) => setView({ ...view, zoom: next });
  const finer = zoom !== null && axis === "step" && metrics.data?.thinned === true;
  const range = useQuery(rangeQuery(task.id, zoom?.[0] ?? 0, zoom?.[1] ?? 0, finer));
  const points = useMemo(
    () => zoomedIn(metrics.data?.points ?? [], finer ? range.data?.points : undefined),
    [metrics.data, finer, range.data],
  );
  return (
    <div className="stack">
      <ChartBar view={view} onChange={setView}>
        <button type="button" aria-pressed={all} onClick={() => setAll(!all)}>
          All metrics
        </button>
        <button
          type="button"
          disabled={points.length === 0}
          title={metrics.data?.thinned ? "Download the plotted points" : "Download all points"}
          onClick={() => download(`${task.id}.csv`, csv(points, metrics.data?.names ?? []))}
        >
          CSV
        </button>
      </ChartBar>
      <Answer query={metrics}>
        {(found) =>
          found.points.length === 0 && others.length === 0 ? (
            <Empty title="No metrics yet">
              {isFinal(task.status) ? "This run logged no metrics." : "Metrics appear here as the run logs them."}
            </Empty>
          ) : (
            <div className="charts">
              <Drawn {...{ view, all, points, onZoom }} names={found.names} />
              {others.map((series) => (
                <Other key={series} {...{ task, series, start, view, all, onZoom }} />
              ))}
              {start && <Taken {...{ task, start, axis, zoom, onZoom }} />}
              {start && <Machines {...{ task, start, axis, zoom, onZoom }} points={found.points} />}
            </div>
          )
        }
      </Answer>
    </div>
  );
}

function download(name: string, text: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  link.download = name;
  link.click();
  // The browser reads it later, and a busy one even later.
  window.setTimeout(() => URL.revokeObjectURL(link.href), KEPT_MS);
}

/** Replace thinned points with the finer points of a zoom. */
function zoomedIn(points: Point[], finer: readonly Point[] | undefined): Point[] {
  const [first, last] = [finer?.[0], finer?.at(-1)];
  if (!finer || !first || !last) return points;
  return [
    ...points.filter((point) => point.step < first.step),
    ...finer,
    ...points.filter((point) => point.step > last.step),
  ];
}
