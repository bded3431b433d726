/** Compares any selection of runs: results, curves, hyperparameters against a metric, configuration differences. */
import { useQueries, useQuery } from "@tanstack/react-query";
import { Link, useLocation, useNavigate, useSearch } from "@tanstack/react-router";
import { useEffect, useMemo } from "react";
import { followPoints } from "../api/live";
import { comparedQuery, metricsQuery, taskQuery } from "../api/queries";
import type { TaskView } from "../api/schema";
import { colorOf, fieldsOf, MOST_COMPARED, MOST_CURVES, measuredOf } from "../lib/compare";
import { metricName } from "../lib/metrics";
import { type Axis, column, type Point } from "../lib/series";
import { isFinal } from "../lib/words";
import { Chart, COLORS, type Line } from "../parts/Chart";
import { ChartBar, useChartView } from "../parts/ChartBar";
import { useCanonical } from "../parts/canonical";
import { useCopy } from "../parts/copying";
import { Empty, Failed, Loading } from "../parts/states";
import type { CompareSearch } from "../router";
import { Differences } from "./compare/Differences";
import { Parallel } from "./compare/Parallel";
import { Results } from "./compare/Results";
import "../styles/compare.css";

const NAMES = ["loss", "eval_loss", "learning_rate", "grad_norm", "mean_token_accuracy", "train_tokens_per_second"];

export interface Run {
  task: TaskView;
  label: string;
  color: string;
  /** Whether its curves are shown. */
  drawn: boolean;
}

export function Compare() {
  const { tasks } = useSearch({ from: "/compare" });
  const given = useMemo(() => [...new Set(tasks?.split(",").filter(Boolean))].slice(0, MOST_COMPARED), [tasks]);
  const navigate = useNavigate({ from: "/compare" });
  const found = useQuery(comparedQuery(given));
  // Beginnings of ids, and runs that do not exist: each is looked up alone.
  const missing =
    found.data && !found.isPlaceholderData ? given.filter((id) => !found.data.some((run) => run.id === id)) : [];
  const others = useQueries({ queries: missing.map((id) => taskQuery(id)) });
  useCanonical(
    "task",
    missing.map((id, at) => [id, others[at]?.data] as const),
    (ids) => {
      const whole = new Map(missing.map((id, at) => [id, ids[at] ?? id]));
      const next = given.map((id) => whole.get(id) ?? id).join(",");
      void navigate({ search: (old) => ({ ...old, tasks: next }), replace: true });
    },
  );
  const failed = found.error ?? others.find((each) => each.error)?.error;
  if (given.length < 2)
    return (
      <div className="page">
        <h1>Compare</h1>
        <Empty title="No runs selected">
          Select two or more runs in <Link to="/tasks">the list of runs</Link>, and click Compare.
        </Empty>
      </div>
    );
  return (
    <div className="page">
      <div className="row between">
        <h1>
          Compare <span className="muted">{given.length} runs</span>
        </h1>
        <CopyLink />
      </div>
      {failed && <Failed error={failed} />}
      {found.data && found.data.length > 0 ? <Compared tasks={found.data} /> : !failed && <Loading rows={8} />}
    </div>
  );
}

function CopyLink() {
  const { href } = useLocation();
  const url = `${location.origin}${href}`;
  const { shown, copied, copy } = useCopy<HTMLSpanElement>(url);
  return (
    <>
      <span ref={shown} className="hidden" aria-hidden="true">
        {url}
      </span>
      <button type="button" onClick={copy}>
        {copied ? "Copied" : "Copy link"}
      </button>
    </>
  );
}

function Compared({ tasks }: { tasks: TaskView[] }) {
  const search = useSearch({ from: "/compare" });
  const navigate = useNavigate({ from: "/compare" });
  const change = (to: Partial<CompareSearch>) =>
    void navigate({ search: (old) => ({ ...old, ...to }), replace: true, resetScroll: false });
  const measured = useMemo(() => measuredOf(tasks), [tasks]);
  const fields = useMemo(() => fieldsOf(tasks), [tasks]);
  const runs = useMemo(() => runsOf(tasks, search.curves), [tasks, search.curves]);
  const draw = (id: string, on: boolean) => {
    const ids = runs.filter((run) => (run.task.id === id ? on : run.drawn)).map((run) => run.task.id);
    change({ curves: ids.join(",") || "none" });
  };
  return (
    <>
      <Results runs={runs} measured={measured} onDraw={draw} />
      <Curves runs={runs.filter((run) => run.drawn)} search={search} change={change} />
      <Parallel
        runs={runs}
        fields={fields}
        measured={measured}
        goal={search.goal}
        onGoal={(goal) => change({ goal })}
      />
      <Differences runs={runs} fields={fields} />
    </>
  );
}

function runsOf(tasks: readonly TaskView[], curves: string | undefined): Run[] {
  const drawn = new Set(curves?.split(",") ?? tasks.slice(0, MOST_CURVES).map((task) => task.id));
  const names = tasks.map((task) => task.name);
  return tasks.map((task, at) => ({
    task,
    // Runs of the same workflow file have the same name.
    label: names.indexOf(task.name) === names.lastIndexOf(task.name) ? task.name : `${task.name} ${task.id.slice(-4)}`,
    color: colorOf(at, COLORS),
    drawn: drawn.has(task.id),
  }));
}

function Curves({
  runs,
  search,
  change,
}: {
  runs: readonly Run[];
  search: CompareSearch;
  change: (to: Partial<CompareSearch>) => void;
}) {
  const [view, setView] = useChartView(search, change);
  const ids = runs
    .filter((run) => !isFinal(run.task.status))
    .map((run) => run.task.id)
    .join(",");
  useEffect(() => followPoints(ids ? ids.split(",") : []), [ids]);
  const metrics = useQueries({ queries: runs.map((run) => metricsQuery(run.task.id)) });
  const points = metrics.map((each) => each.data?.points ?? []);
  const { axis, log, weight, zoom } = view;
  const names = NAMES.filter((name) => points.some((each) => each.some((point) => name in point.values)));
  if (names.length === 0) return null;
  return (
    <>
      <ChartBar view={view} onChange={setView} />
      <div className="charts">
        {names.map((name) => (
          <Chart
            key={name}
            title={metricName(name)}
            lines={linesOf(runs, points, name, axis)}
            {...{ log, axis, zoom, weight }}
            onZoom={(next) => setView({ ...view, zoom: next })}
          />
        ))}
      </div>
    </>
  );
}

function linesOf(runs: readonly Run[], points: readonly Point[][], name: string, axis: Axis): Line[] {
  return runs.flatMap((run, at): Line[] => {
    const found = column(points[at] ?? [], name, axis);
    if (found.xs.length === 0) return [];
    return [{ label: run.label, color: run.color, dots: found.xs.length < 12, column: found }];
  });
}
