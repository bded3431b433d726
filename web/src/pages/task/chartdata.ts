/** What the charts of a run show, from all that is known of it. */
import { keepPreviousData, useQueries, useQuery } from "@tanstack/react-query";
import { useEffect, useMemo, useState } from "react";
import { api, ask } from "../../api/client";
import {
  checkpointsQuery,
  metricsQuery,
  otherSeriesQuery,
  pausesQuery,
  pointsQuery,
  rangeQuery,
  workersQuery,
} from "../../api/queries";
import type { TaskAnswer } from "../../api/schema";
import { type ChartSpec, chartsOf } from "../../lib/charts";
import type { Zoom } from "../../lib/chartview";
import { machineCharts, processCharts, type Stay, staysOf } from "../../lib/hardware";
import { type Marker, markersOf } from "../../lib/markers";
import type { Range } from "../../lib/scale";
import { type Axis, atOrAfter, axesOf, type Point, placeOf } from "../../lib/series";
import { isFinal, plain } from "../../lib/words";

const MOST_SAMPLES = 500;
const REFRESH_MS = 30_000;
/** A range that stays so long is worth its own points. */
const SETTLED_MS = 150;
/** Tasks whose loss is a mean over tokens. */
const OF_TOKENS = new Set(["sft", "lora_sft"]);
const NO_POINTS: Point[] = [];

export interface RunCharts {
  metrics: ReturnType<typeof useMetrics>;
  charts: ChartSpec[];
  markers: Marker[];
  axes: Axis[];
  axis: Axis;
  /** The x range of the training, which all its charts share. */
  extent: Range | null;
  /** The plotted training points. */
  points: Point[];
}

function useMetrics(id: string) {
  return useQuery(metricsQuery(id));
}

/** @param all Minor metrics too. */
export function useRunCharts(task: TaskAnswer, wanted: Axis, zoom: Zoom, all: boolean): RunCharts {
  const final = isFinal(task.status);
  const metrics = useMetrics(task.id);
  const whole = metrics.data?.points ?? NO_POINTS;
  const names = metrics.data?.names;
  const axes = useMemo(() => axesOf(whole), [whole]);
  const axis = axes.includes(wanted) ? wanted : "step";
  const start = whole[0]?.at ?? task.started_at ?? undefined;
  const place = useMemo(() => placeOf(whole, axis, start), [whole, axis, start]);

  const xs = useMemo(() => whole.map(({ step, at }) => place(step, Date.parse(at)) ?? 0), [whole, place]);
  const steps = useSettled(useMemo(() => stepsWithin(whole, xs, zoom), [whole, xs, zoom]));
  const finer = steps !== null && metrics.data?.thinned === true;
  const range = useQuery({
    ...rangeQuery(task.id, steps?.[0] ?? 0, steps?.[1] ?? 0, finer),
    placeholderData: keepPreviousData,
  });
  const fine = finer ? range.data?.points : undefined;
  const points = useMemo(() => zoomedIn(whole, fine), [whole, fine]);
  const ofTokens = OF_TOKENS.has(task.kind);
  const training = useMemo(
    () => chartsOf({ points, whole: fine && whole, names: names ?? [], axis, place, all, ofTokens }),
    [points, whole, fine, names, axis, place, all, ofTokens],
  );

  const others = useOthers(task.id, final);
  const otherCharts = useMemo(
    () =>
      others.flatMap(({ series, points: logged, names: logs }) =>
        chartsOf({ points: logged, names: logs, axis, place, all, ofTokens, series: plain(series) }),
      ),
    [others, axis, place, all, ofTokens],
  );
  const system = useQuery(pointsQuery(task.id, "system", final)).data?.points;
  const processes = useMemo(() => processCharts(system ?? NO_POINTS, axis, place), [system, axis, place]);
  const machines = useMachines(task, start);
  const hardware = useMemo(
    () =>
      machines.flatMap(({ worker, samples }) =>
        machineCharts(worker, samples, whole, axis, place).map((chart) =>
          machines.length > 1
            ? { ...chart, id: `${chart.id}/${worker.id}`, title: `${chart.title} · ${worker.id}` }
            : chart,
        ),
      ),
    [machines, whole, axis, place],
  );
  const charts = useMemo(
    () => [...training, ...otherCharts, ...processes, ...hardware],
    [training, otherCharts, processes, hardware],
  );
  const extent = useMemo(() => extentOf([...training, ...processes, ...hardware]), [training, processes, hardware]);

  const checkpoints = useQuery(checkpointsQuery(task.id)).data;
  const events = useQuery(pausesQuery(task.id)).data;
  const attempts = task.attempt_list;
  const markers = useMemo(
    () => markersOf({ checkpoints: checkpoints ?? [], events: events ?? [], attempts: attempts ?? [] }, whole, place),
    [checkpoints, events, attempts, whole, place],
  );
  return { metrics, charts, markers, axes, axis, extent, points };
}

/** The series that a task logs besides training: a second model, an evaluation, metrics of a script. */
function useOthers(id: string, final: boolean): { series: string; points: Point[]; names: string[] }[] {
  const series = useQuery(otherSeriesQuery(id, final)).data ?? [];
  const found = useQueries({ queries: series.map((each) => pointsQuery(id, each, final)), combine: dataOf });
  const key = series.join("\n");
  // biome-ignore lint/correctness/useExhaustiveDependencies: `key` stands for the series
  return useMemo(
    () =>
      series.flatMap((name, at) => {
        const view = found[at];
        return view ? [{ series: name, points: view.points as Point[], names: view.names }] : [];
      }),
    [key, found],
  );
}

function useMachines(task: TaskAnswer, start: string | undefined) {
  const workers = useQuery(workersQuery).data?.items;
  const stays = start ? staysOf(task.attempt_list ?? [], start) : [];
  const known = stays.flatMap((stay) => {
    const worker = workers?.find(({ id }) => id === stay.worker_id);
    return worker ? [{ stay, worker }] : [];
  });
  const histories = useQueries({ queries: known.map(({ stay }) => historyQuery(stay)), combine: dataOf });
  const key = known.map(({ worker }) => worker.id).join("\n");
  // biome-ignore lint/correctness/useExhaustiveDependencies: `key` stands for the workers, whose load is not shown here
  return useMemo(
    () =>
      known.flatMap(({ worker }, at) => {
        const samples = histories[at]?.samples;
        return samples ? [{ worker, samples }] : [];
      }),
    [key, histories],
  );
}

const historyQuery = ({ worker_id, since, until }: Stay) => ({
  queryKey: ["history", worker_id, since, until],
  queryFn: ({ signal }: { signal: AbortSignal }) =>
    ask(
      api.GET("/api/v1/workers/{worker_id}/history", {
        params: { path: { worker_id }, query: { since, until, max_points: MOST_SAMPLES } },
        signal,
      }),
    ),
  refetchInterval: until ? (false as const) : REFRESH_MS,
});

function dataOf<T>(results: readonly { data: T }[]): T[] {
  return results.map(({ data }) => data);
}

/** The steps around the shown range. */
function stepsWithin(points: readonly Point[], xs: readonly number[], zoom: Zoom): Zoom {
  if (!zoom) return null;
  const low = points[Math.max(0, atOrAfter(xs, zoom[0]) - 1)];
  const high = points[Math.min(points.length - 1, atOrAfter(xs, zoom[1]))];
  return low && high ? [low.step, high.step] : null;
}

/** A range, once it has not changed for a moment. */
function useSettled(range: Zoom): Zoom {
  const [settled, setSettled] = useState(range);
  const key = range?.join("~");
  // biome-ignore lint/correctness/useExhaustiveDependencies: `key` stands for the range
  useEffect(() => {
    const timer = window.setTimeout(() => setSettled(range), SETTLED_MS);
    return () => window.clearTimeout(timer);
  }, [key]);
  return range && settled;
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

function extentOf(charts: readonly ChartSpec[]): Range | null {
  const ends = charts.flatMap(({ lines }) =>
    lines.flatMap(({ column: { xs } }) => (xs.length > 0 ? [xs[0] ?? 0, xs.at(-1) ?? 0] : [])),
  );
  if (ends.length === 0) return null;
  const [low, high] = [Math.min(...ends), Math.max(...ends)];
  return low === high ? [low - 1, high + 1] : [low, high];
}
