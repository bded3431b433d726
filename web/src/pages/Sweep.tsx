/** One sweep: leaderboard of its trials, parallel coordinates, importance of its parameters. */
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate, useParams } from "@tanstack/react-router";
import { useMemo, useState } from "react";
import { api, ask } from "../api/client";
import { importanceQuery, sweepEnded, sweepQuery } from "../api/queries_sweeps";
import type { SweepDetail, TrialView } from "../api/schema";
import { type Field, fieldName, fieldText, type Measured, MOST_COMPARED } from "../lib/compare";
import { number } from "../lib/format";
import { metricName } from "../lib/metrics";
import { plain } from "../lib/words";
import { Bar, Confirm, Id, Panel, Status, TaskLink, Time } from "../parts/bits";
import { Scrolls } from "../parts/Lanes";
import { useMaySteer } from "../parts/session";
import { Answer, Empty } from "../parts/states";
import { toast } from "../parts/toasts";
import { Parallel } from "./compare/Parallel";
import { endedOf, methodOf } from "./Sweeps";
import "../styles/compare.css";

export function Sweep() {
  const { name } = useParams({ from: "/sweeps/$name" });
  const sweep = useQuery(sweepQuery(name));
  return (
    <div className="page">
      {!sweep.data && <h1>{name}</h1>}
      <Answer query={sweep} rows={6}>
        {(found) => <Shown sweep={found} />}
      </Answer>
    </div>
  );
}

function Shown({ sweep }: { sweep: SweepDetail }) {
  const paths = useMemo(() => Object.keys(sweep.spec.parameters as object), [sweep.spec]);
  const trials = sweep.trial_list;
  return (
    <>
      <Head sweep={sweep} />
      {trials.length === 0 ? (
        <Panel title="Trials">
          <Empty title="No trials yet">The first trials start in a moment.</Empty>
        </Panel>
      ) : (
        <>
          <Panel title="Trials" flush actions={<CompareLink trials={trials} />}>
            <Scrolls label="Trials">
              <Leaderboard sweep={sweep} paths={paths} />
            </Scrolls>
          </Panel>
          <Coordinates sweep={sweep} paths={paths} />
          <Importance sweep={sweep} />
        </>
      )}
      <Panel title="Spec">
        <details>
          <summary>Sweep and workflow file</summary>
          <pre>{JSON.stringify(sweep.spec, null, 2)}</pre>
          <pre>{sweep.document}</pre>
        </details>
      </Panel>
    </>
  );
}

function Head({ sweep }: { sweep: SweepDetail }) {
  return (
    <div className="task-head">
      <div className="row between">
        <div className="row">
          <h1>{sweep.name}</h1>
          <Status status={sweep.status} />
          <Id value={sweep.id} />
        </div>
        <Actions sweep={sweep} />
      </div>
      <div className="row muted small facts-line">
        <span>{methodOf(sweep)}</span>
        <span>
          {sweep.direction} {metricName(sweep.metric)}
        </span>
        <span className="num">
          {number(endedOf(sweep))} of {number(sweep.trials)} trials
        </span>
        <span className="num">{number(sweep.steps)} steps</span>
        {sweep.gpu_hours > 0 && <span className="num">{number(sweep.gpu_hours)} GPU hours</span>}
        <span>owner {sweep.owner}</span>
        <span>
          created <Time at={sweep.created_at} relative />
        </span>
      </div>
      {sweep.reason && <div>{sweep.reason}</div>}
    </div>
  );
}

function Actions({ sweep }: { sweep: SweepDetail }) {
  const may = useMaySteer(sweep);
  const client = useQueryClient();
  const navigate = useNavigate();
  const [asking, setAsking] = useState(false);
  const path = { params: { path: { sweep_id: sweep.id } } };
  const stop = useMutation({
    mutationFn: () => ask(api.POST("/api/v1/sweeps/{sweep_id}/stop", path)),
    onSettled: () => client.invalidateQueries({ queryKey: ["sweep"] }),
  });
  const remove = useMutation({
    mutationFn: () => ask(api.DELETE("/api/v1/sweeps/{sweep_id}", path)),
    onSuccess: () => {
      toast("Removed");
      void navigate({ to: "/sweeps" });
      void client.invalidateQueries({ queryKey: ["sweeps"] });
    },
  });
  if (!may) return null;
  const ended = sweepEnded(sweep);
  if (!ended && sweep.status !== "running") return null;
  return (
    <div className="controls" role="toolbar" aria-label="Controls">
      <button type="button" className="danger" onClick={() => setAsking(true)}>
        {ended ? "Remove" : "Stop sweep"}
      </button>
      {asking && (
        <Confirm
          title={ended ? "Remove this sweep?" : "Stop this sweep?"}
          action={ended ? "Remove sweep" : "Stop sweep"}
          danger
          onDo={() => (ended ? remove : stop).mutate()}
          onClose={() => setAsking(false)}
        >
          {ended
            ? "Its runs are kept."
            : "No further trial starts. Running trials stop at their next step and are kept."}
        </Confirm>
      )}
    </div>
  );
}

function CompareLink({ trials }: { trials: readonly TrialView[] }) {
  const ids = trials.flatMap((trial) => trial.task_id ?? []).slice(0, MOST_COMPARED);
  if (ids.length < 2) return null;
  return (
    <Link to="/compare" search={{ tasks: ids.join(",") }}>
      Compare runs
    </Link>
  );
}

function Leaderboard({ sweep, paths }: { sweep: SweepDetail; paths: readonly string[] }) {
  return (
    <table>
      <thead>
        <tr>
          <th className="num">Trial</th>
          <th>State</th>
          <th className="num">{metricName(sweep.metric)}</th>
          <th className="num">Steps</th>
          {paths.map((path) => (
            <th key={path} className="num" title={path}>
              {fieldName(path)}
            </th>
          ))}
          <th>Run</th>
        </tr>
      </thead>
      <tbody>
        {sweep.trial_list.map((trial) => (
          <tr key={trial.number}>
            <td className="num">{trial.number}</td>
            <td>
              <span title={trial.error ?? undefined}>
                <Status status={trial.run_status ?? trial.state} />
              </span>
            </td>
            <td className={trial.number === sweep.best?.number ? "num strong" : "num"}>{number(trial.value)}</td>
            <td className="num">{number(trial.steps)}</td>
            {paths.map((path) => (
              <td key={path} className="num">
                {fieldText(trial.parameters[path])}
              </td>
            ))}
            <td>
              {trial.task_id ? <TaskLink id={trial.task_id} /> : <span className="muted">{plain(trial.error)}</span>}
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

/** The trials with a value, as the comparison of runs draws them. */
function Coordinates({ sweep, paths }: { sweep: SweepDetail; paths: readonly string[] }) {
  const drawn = useMemo(() => {
    const trials = sweep.trial_list.filter((trial) => trial.value != null);
    const runs = trials.map(({ number: at }) => ({ task: { id: `trial-${at}` }, label: `Trial ${at}` }));
    const fields = paths.map((path): Field => {
      const values = trials.map((trial) => trial.parameters[path]);
      return { path, name: fieldName(path), values, differs: new Set(values.map((each) => `${each}`)).size > 1 };
    });
    const values = trials.map((trial) => trial.value ?? undefined);
    const measured: Measured[] = [{ name: sweep.metric, values, best: new Set() }];
    return { runs, fields, measured };
  }, [sweep, paths]);
  return <Parallel {...drawn} lower={sweep.direction === "minimize"} />;
}

function Importance({ sweep }: { sweep: SweepDetail }) {
  const { data } = useQuery(importanceQuery(sweep.id, sweep.states.completed ?? 0));
  const shares = Object.entries(data?.shares ?? {});
  if (shares.length === 0) return null;
  return (
    <Panel title="Parameter importance">
      <div className="stack">
        {shares.map(([path, share]) => (
          <div key={path} className="row between">
            <span title={path}>{fieldName(path)}</span>
            <Bar value={100 * share} label={`${fieldName(path)}: ${Math.round(share * 100)} %`} />
          </div>
        ))}
      </div>
    </Panel>
  );
}
