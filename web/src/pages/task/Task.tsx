/** One task: status, actions and details. */
import { useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useParams, useSearch } from "@tanstack/react-router";
import { useState } from "react";
import { otherSeriesQuery, taskQuery, whyQuery } from "../../api/queries";
import type { TaskAnswer } from "../../api/schema";
import { duration, number, percent, ranSeconds } from "../../lib/format";
import { isFinal, isTraining, plain } from "../../lib/words";
import { DocsLink, Id, Panel, Progress, Status, Tabs, Time } from "../../parts/bits";
import { useCanonical } from "../../parts/canonical";
import { useNow } from "../../parts/clock";
import { EditRun } from "../../parts/EditRun";
import { useMaySteer } from "../../parts/session";
import { Answer, Loading } from "../../parts/states";
import { useTitle } from "../../parts/title";
import type { Tab } from "../../router";
import { Charts } from "./Charts";
import { Controls } from "./Controls";
import { Files } from "./Files";
import { History } from "./History";
import { Log } from "./Log";
import { Merged } from "./Merged";
import { Predictions } from "./Predictions";
import { Published } from "./Published";
import { Result } from "./Result";
import { Spec } from "./Spec";

export function Task() {
  const { taskId } = useParams({ from: "/tasks/$taskId" });
  const navigate = useNavigate({ from: "/tasks/$taskId" });
  const task = useQuery(taskQuery(taskId));
  useCanonical(
    "task",
    [[taskId, task.data]],
    ([id = taskId]) => void navigate({ params: { taskId: id }, search: true, hash: true, replace: true }),
  );
  return (
    <div className="page">
      {!task.data && <h1>Run {taskId}</h1>}
      <Answer query={task} rows={6}>
        {(found) => <Shown task={found} />}
      </Answer>
    </div>
  );
}

const TAB_NAMES: readonly (readonly [Tab, string])[] = [
  ["charts", "Charts"],
  ["log", "Log"],
  ["files", "Checkpoints and artifacts"],
  ["predictions", "Predictions"],
  ["spec", "Spec"],
  ["history", "History"],
];

function Shown({ task }: { task: TaskAnswer }) {
  const { tab } = useSearch({ from: "/tasks/$taskId" });
  const navigate = useNavigate({ from: "/tasks/$taskId" });
  const training = isTraining(task.kind);
  const others = useQuery(otherSeriesQuery(task.id, isFinal(task.status))).data ?? [];
  const shown = (id: Tab) => training || (id === "charts" ? others.length > 0 : id !== "predictions");
  const tabs = TAB_NAMES.filter(([id]) => shown(id));
  const first = task.status === "failed" || !training ? "log" : tabs[0]?.[0];
  const chosen = tabs.find(([id]) => id === tab)?.[0] ?? first ?? "log";
  return (
    <>
      <Head task={task} />
      <Controls task={task} />
      {["pending", "queued"].includes(task.status) && <Waiting task={task} />}
      {task.error && <Fault task={task} />}
      {task.status === "completed" && training && <Result task={task} />}
      {task.status === "completed" && task.kind === "merge" && <Merged task={task} />}
      {task.status === "completed" && task.kind === "push" && <Published task={task} />}
      {task.stalled_since && (
        <div className="note">
          Stalled: no output since <Time at={task.stalled_since} />.
        </div>
      )}
      <Tabs
        tabs={tabs}
        chosen={chosen}
        onChoose={(next) =>
          void navigate({ search: (old) => ({ ...old, tab: next }), replace: true, resetScroll: false })
        }
      />
      <div role="tabpanel" aria-labelledby={`tab-${chosen}`}>
        {chosen === "charts" && <Charts task={task} />}
        {chosen === "log" && <Log key={task.id} task={task} />}
        {chosen === "files" && <Files task={task} />}
        {chosen === "predictions" && <Predictions task={task} />}
        {chosen === "spec" && <Spec task={task} />}
        {chosen === "history" && <History task={task} />}
      </div>
    </>
  );
}

function Head({ task }: { task: TaskAnswer }) {
  const { step, max_steps } = task.progress ?? {};
  const share =
    task.status === "running" && max_steps ? `${Math.floor(percent(step ?? 0, max_steps))}%` : plain(task.status);
  useTitle(`${share} · ${task.name}`);
  const going = task.status === "running" && task.desired !== "run";
  const mayEdit = useMaySteer(task);
  const [editing, setEditing] = useState(false);
  return (
    <div className="task-head">
      <div className="row">
        <h1>{task.name}</h1>
        <Status status={task.status} note={going ? (task.desired === "pause" ? "pausing" : "cancelling") : undefined} />
        <Id value={task.id} />
        {mayEdit && (
          <button type="button" className="quiet" onClick={() => setEditing(true)}>
            Edit
          </button>
        )}
        {editing && <EditRun task={task} onClose={() => setEditing(false)} />}
      </div>
      <div className="row muted small facts-line">
        <span>{task.kind}</span>
        <Link to="/workflows/$workflowId" params={{ workflowId: task.workflow_id }}>
          {task.workflow_name ?? task.workflow_id}
        </Link>
        {task.worker_id && (
          <span>
            on{" "}
            <Link to="/workers" hash={task.worker_id}>
              {task.worker_id}
            </Link>
          </span>
        )}
        {task.original_name && <span>named {task.original_name} in its workflow file</span>}
        <span>owner {task.owner}</span>
        <span>
          submitted <Time at={task.created_at} relative />
        </span>
        <Ran task={task} />
        {task.attempts > 1 && <span>attempt {task.attempts}</span>}
        {task.parent_task_id && (
          <span>
            from{" "}
            <Link to="/tasks/$taskId" params={{ taskId: task.parent_task_id }}>
              {task.parent_task_id}
            </Link>
          </span>
        )}
        {task.reason && !["started", "ready", "finished"].includes(task.reason) && <span>{plain(task.reason)}</span>}
      </div>
      {!!(task.tags?.length || task.notes) && (
        <div className="row tight notes">
          {task.tags?.map((tag) => (
            <Link key={tag} to="/tasks" search={{ tag }} className="tag">
              {tag}
            </Link>
          ))}
          {task.notes && <span>{task.notes}</span>}
        </div>
      )}
      {task.status === "running" && <Progress progress={task.progress} />}
    </div>
  );
}

function Ran({ task }: { task: TaskAnswer }) {
  const seconds = ranSeconds(task, useNow());
  return seconds === null ? null : <span className="num">duration {duration(seconds)}</span>;
}

/** Pending reason: a sentence, then a row for each worker. */
function Waiting({ task }: { task: TaskAnswer }) {
  const why = useQuery(whyQuery(task.id));
  return (
    <Panel title="Pending reason">
      {why.data ? (
        <div className="stack">
          <div>
            {why.data.why ?? task.why}
            {!!why.data.ahead && (
              <span className="muted">
                {" "}
                {why.data.ahead === 1 ? "1 run" : `${number(why.data.ahead)} runs`} ahead in the queue.
              </span>
            )}
          </div>
          {!!why.data.workers?.length && (
            <table>
              <thead>
                <tr>
                  <th>Worker</th>
                  <th>Eligible</th>
                  <th>Reason</th>
                </tr>
              </thead>
              <tbody>
                {why.data.workers.map((each) => (
                  <tr key={each.worker_id}>
                    <td>{each.worker_id}</td>
                    <td className="nowrap">{{ fits: "yes", waits: "busy", never: "no" }[each.verdict]}</td>
                    <td className="muted">{each.reason}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          )}
        </div>
      ) : (
        <Loading rows={1} />
      )}
    </Panel>
  );
}

function Fault({ task }: { task: TaskAnswer }) {
  return (
    <section className="panel bad" aria-label="Error">
      <header>
        <h2>
          {task.status === "failed" ? "Failed" : "Last error"}
          {task.reason && <span className="muted"> · {plain(task.reason)}</span>}
        </h2>
        <DocsLink page="how-to/debug-a-failed-workflow">How to debug</DocsLink>
      </header>
      <div className="body stack">
        <div>{task.error}</div>
        {task.detail && task.detail !== task.error && (
          <details open={task.reason !== "bad_input" && task.detail.length < 2000}>
            <summary>Traceback</summary>
            <pre>{task.detail}</pre>
          </details>
        )}
      </div>
    </section>
  );
}
