/** Compares up to eight tasks: curves, results, and spec differences. */
import { useQueries } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useEffect, useMemo, useState } from "react";
import { followPoints } from "../api/live";
import { metricsQuery, taskQuery } from "../api/queries";
import type { TaskAnswer } from "../api/schema";
import { duration, number, ranSeconds } from "../lib/format";
import { metricName } from "../lib/metrics";
import { type Axis, column, leaves, type Point } from "../lib/series";
import { serverNow } from "../lib/servertime";
import { Panel, Status, TaskLink } from "../parts/bits";
import { Chart, COLORS, type Line } from "../parts/Chart";
import { ChartBar, useChartView } from "../parts/ChartBar";
import { useCanonical } from "../parts/canonical";
import { Empty, Failed, Loading } from "../parts/states";

const MOST = 8;
const NAMES = ["loss", "eval_loss", "learning_rate", "grad_norm", "mean_token_accuracy", "train_tokens_per_second"];

interface Run {
  task: TaskAnswer;
  label: string;
  color: string;
  points: Point[];
}

export function Compare() {
  const { tasks } = useSearch({ from: "/compare" });
  const ids = useMemo(() => [...new Set(tasks?.split(",").filter(Boolean))].slice(0, MOST), [tasks]);
  const navigate = useNavigate({ from: "/compare" });
  const details = useQueries({ queries: ids.map((id) => taskQuery(id)) });
  useCanonical(
    "task",
    ids.map((id, at) => [id, details[at]?.data] as const),
    (found) => void navigate({ search: (old) => ({ ...old, tasks: found.join(",") }), replace: true }),
  );
  const found = details.flatMap(({ data }) => data?.id ?? []).join(",");
  // Only existing tasks: the stream rejects others.
  useEffect(() => followPoints(found ? found.split(",") : []), [found]);
  const metrics = useQueries({
    queries: details.map(({ data }, at) => ({
      ...metricsQuery(data?.id ?? ids[at] ?? ""),
      enabled: data !== undefined,
    })),
  });
  const failed = details.find((each) => each.error);
  if (ids.length < 2)
    return (
      <div className="page">
        <h1>Compare</h1>
        <Empty title="No runs selected">
          In <Link to="/tasks">the list of tasks</Link>, select two to eight tasks and click Compare.
        </Empty>
      </div>
    );
  if (failed?.error)
    return (
      <div className="page">
        <h1>Compare</h1>
        <Failed error={failed.error} />
      </div>
    );
  const runs = details.flatMap(({ data }, at): Run[] =>
    data
      ? [
          {
            task: data,
            label: `${data.name} ${data.id.slice(-4)}`,
            color: COLORS[at] ?? "#888888",
            points: metrics[at]?.data?.points ?? [],
          },
        ]
      : [],
  );
  return (
    <div className="page">
      <h1>
        Compare <span className="muted">{ids.length} tasks</span>
      </h1>
      {runs.length < ids.length ? <Loading rows={8} /> : <Compared runs={runs} />}
    </div>
  );
}

function Compared({ runs }: { runs: Run[] }) {
  const search = useSearch({ from: "/compare" });
  const navigate = useNavigate({ from: "/compare" });
  const [view, setView] = useChartView(
    search,
    (to) => void navigate({ search: (old) => ({ ...old, ...to }), replace: true, resetScroll: false }),
  );
  const { axis, log, weight, zoom } = view;
  const names = NAMES.filter((name) => runs.some((run) => run.points.some((point) => name in point.values)));
  return (
    <>
      <ChartBar view={view} onChange={setView} />
      {names.length === 0 ? (
        <Empty title="No metrics yet" />
      ) : (
        <div className="charts">
          {names.map((name) => (
            <Chart
              key={name}
              title={metricName(name)}
              lines={linesOf(runs, name, axis)}
              {...{ log, axis, zoom, weight }}
              onZoom={(next) => setView({ ...view, zoom: next })}
            />
          ))}
        </div>
      )}
      <Table runs={runs} />
    </>
  );
}

function linesOf(runs: Run[], name: string, axis: Axis): Line[] {
  return runs.flatMap((run): Line[] => {
    const found = column(run.points, name, axis);
    if (found.xs.length === 0) return [];
    return [{ label: run.label, color: run.color, dots: found.xs.length < 12, column: found }];
  });
}

function Table({ runs }: { runs: Run[] }) {
  const [all, setAll] = useState(false);
  const rows = useMemo(() => {
    const specs = runs.map((run) => leaves(run.task.resolved ?? run.task.spec));
    const paths = [...new Set(specs.flatMap((spec) => [...spec.keys()]))].sort();
    return paths.map((path) => {
      const values = specs.map((spec) => (spec.has(path) ? JSON.stringify(spec.get(path)) : undefined));
      return { path, values, differs: new Set(values).size > 1 };
    });
  }, [runs]);
  const shown = rows.filter((row) => all || row.differs);
  const last = (run: Run, name: string) => number(run.points.findLast((point) => name in point.values)?.values[name]);
  return (
    <Panel
      title="Results and spec differences"
      actions={
        <button type="button" className="quiet" aria-pressed={all} onClick={() => setAll(!all)}>
          All fields
        </button>
      }
      flush
    >
      <table>
        <thead>
          <tr>
            <th />
            {runs.map((run) => (
              <th key={run.task.id}>
                <i className="swatch" style={{ background: run.color }} />
                <TaskLink id={run.task.id} name={run.label} />
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          <Row
            name="Status"
            values={runs.map((run) => ({ key: run.task.id, value: <Status status={run.task.status} /> }))}
          />
          <Row name="Loss" values={runs.map((run) => ({ key: run.task.id, value: last(run, "loss") }))} />
          <Row name="Eval loss" values={runs.map((run) => ({ key: run.task.id, value: last(run, "held_out_loss") }))} />
          <Row
            name="Duration"
            values={runs.map((run) => ({ key: run.task.id, value: duration(ranSeconds(run.task, serverNow())) }))}
          />
          {shown.map((row) => (
            <tr key={row.path} className={all && row.differs ? "differs" : undefined}>
              <th scope="row">{row.path}</th>
              {row.values.map((value, at) => (
                <td key={runs[at]?.task.id} className="num-left">
                  {value ?? <span className="muted">–</span>}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </Panel>
  );
}

function Row({ name, values }: { name: string; values: { key: string; value: React.ReactNode }[] }) {
  return (
    <tr>
      <th scope="row">{name}</th>
      {values.map(({ key, value }) => (
        <td key={key} className="num-left">
          {value}
        </td>
      ))}
    </tr>
  );
}
