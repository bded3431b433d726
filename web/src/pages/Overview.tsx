/** The overview: running, queued and failed tasks, and the machines. */
import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { overviewQuery, workersQuery } from "../api/queries";
import type { TaskView, WorkerView } from "../api/schema";
import { duration, number, ranSeconds } from "../lib/format";
import { isTraining, plain, STATUSES } from "../lib/words";
import { Panel, Progress, Sparkline, TaskLink, Time } from "../parts/bits";
import { useNow } from "../parts/clock";
import { Machine } from "../parts/Fleet";
import { useSession } from "../parts/session";
import { Answer, Empty } from "../parts/states";

const RUNNING_SHOWN = 20;
const MACHINES_SHOWN = 12;

export function Overview() {
  const { mayChange } = useSession();
  const overview = useQuery(overviewQuery);
  const workers = useQuery(workersQuery);
  const tasks = overview.data?.tasks ?? {};
  return (
    <div className="page">
      <div className="row between">
        <h1>Overview</h1>
        {mayChange && (
          <Link to="/train" className="button primary">
            Fine-tune
          </Link>
        )}
      </div>
      <Counts tasks={tasks} workers={workers.data?.items ?? []} />
      <div className="overview">
        <div className="stack">
          <Panel
            title={<>Running {count(tasks, "running", "dispatched")}</>}
            actions={
              <Link to="/tasks" search={{ status: "running,dispatched" }}>
                all
              </Link>
            }
          >
            <Answer query={overview}>
              {({ running: items }) =>
                items.length === 0 ? (
                  <Empty title="Nothing is running">
                    {mayChange ? <Link to="/new">Start with an example</Link> : "Submit a run to see it here."}
                  </Empty>
                ) : (
                  <ul className="running">
                    {items.slice(0, RUNNING_SHOWN).map((task) => (
                      <Running key={task.id} task={task} />
                    ))}
                  </ul>
                )
              }
            </Answer>
          </Panel>
          <Panel
            title={<>Queue {count(tasks, "queued", "pending")}</>}
            actions={
              <Link to="/tasks" search={{ status: "pending,queued" }}>
                all
              </Link>
            }
            flush
          >
            <Answer query={overview}>
              {({ queue: items }) => (items.length === 0 ? <Empty title="Queue is empty" /> : <Queue tasks={items} />)}
            </Answer>
          </Panel>
        </div>
        <div className="stack">
          <Panel
            title={<>Workers {count(overview.data?.workers ?? {}, "online", "unreachable")}</>}
            actions={<Link to="/workers">all</Link>}
          >
            <Answer query={workers}>
              {({ items }) =>
                items.length === 0 ? (
                  <Empty title="No workers yet">
                    <Link to="/workers">Join a machine</Link>
                  </Empty>
                ) : (
                  <div className="stack">
                    {items.slice(0, MACHINES_SHOWN).map((worker) => (
                      <Machine key={worker.id} worker={worker} tasks={overview.data?.running} />
                    ))}
                    {items.length > MACHINES_SHOWN && (
                      <Link to="/workers">and {items.length - MACHINES_SHOWN} more</Link>
                    )}
                  </div>
                )
              }
            </Answer>
          </Panel>
          <Panel
            title="Recent failures"
            actions={
              <Link to="/tasks" search={{ status: "failed" }}>
                all
              </Link>
            }
          >
            <Answer query={overview}>
              {({ failed: items }) =>
                items.length === 0 ? (
                  <Empty title="No failures" />
                ) : (
                  <ul className="failures">
                    {items.slice(0, 6).map((task) => (
                      <li key={task.id}>
                        <div className="row between tight">
                          <TaskLink id={task.id} name={task.name} />
                          <span className="muted small">
                            <Time at={task.finished_at} relative />
                          </span>
                        </div>
                        <div className="small reason">{task.error ?? plain(task.reason)}</div>
                      </li>
                    ))}
                  </ul>
                )
              }
            </Answer>
          </Panel>
        </div>
      </div>
    </div>
  );
}

/** Summary line: each number links to its list. */
function Counts({ tasks, workers }: { tasks: Record<string, number>; workers: readonly WorkerView[] }) {
  const gpus = workers.flatMap((worker) => (worker.status === "online" ? (worker.capabilities.gpus ?? []) : []));
  const busy = workers.flatMap((worker) => (worker.load?.gpus ?? []).flatMap((gpu) => gpu.utilisation_percent ?? []));
  const online = workers.filter((worker) => worker.status === "online").length;
  const shown = STATUSES.filter((status) => tasks[status]);
  return (
    <div className="counts small num">
      {shown.map((status) => (
        <Link key={status} to="/tasks" search={{ status }} className={`status ${status}`}>
          {tasks[status]} {status}
        </Link>
      ))}
      {workers.length > 0 && (
        <Link to="/workers" className="muted aside">
          {online} of {workers.length} machines online
          {gpus.length > 0 && ` · ${gpus.length} GPUs`}
          {busy.length > 0 && `, ${Math.round(busy.reduce((sum, each) => sum + each, 0) / busy.length)} % busy`}
        </Link>
      )}
    </div>
  );
}

function count(found: Record<string, number>, ...statuses: string[]) {
  return <span className="muted num">{statuses.reduce((sum, status) => sum + (found[status] ?? 0), 0)}</span>;
}

function Running({ task }: { task: TaskView }) {
  return (
    <li>
      <div className="what">
        <div className="cut">
          <TaskLink id={task.id} name={task.name} />
        </div>
        <div className="muted small cut">
          {task.kind}
          {task.worker_id && ` · ${task.worker_id}`}
        </div>
      </div>
      {isTraining(task.kind) ? <Loss task={task} /> : <span />}
      {task.status === "dispatched" ? (
        <span className="muted">starting on {task.worker_id}</span>
      ) : task.progress ? (
        <Progress progress={task.progress} compact />
      ) : (
        <Elapsed task={task} />
      )}
    </li>
  );
}

function Elapsed({ task }: { task: TaskView }) {
  return <span className="muted num">for {duration(ranSeconds(task, useNow()))}</span>;
}

function Loss({ task }: { task: TaskView }) {
  const values = (task.glance?.loss ?? [])
    .map((point) => point[1])
    .filter((value): value is number => typeof value === "number");
  return (
    <div className="loss">
      <Sparkline values={values} label={`Loss, latest ${number(values.at(-1))}`} />
      <span className="num small" title="Loss">
        {number(values.at(-1))}
      </span>
    </div>
  );
}

function Queue({ tasks }: { tasks: TaskView[] }) {
  return (
    <table>
      <thead>
        <tr>
          <th>Run</th>
          <th className="hide-phone">Kind</th>
          <th>Pending reason</th>
          <th>Since</th>
        </tr>
      </thead>
      <tbody>
        {tasks.map((task) => (
          <tr key={task.id}>
            <td>
              <TaskLink id={task.id} name={task.name} />
            </td>
            <td className="muted hide-phone">{task.kind}</td>
            <td className="muted">{task.status === "paused" ? "paused" : (task.why ?? plain(task.status))}</td>
            <td className="muted nowrap">
              <Time at={task.queued_at ?? task.created_at} relative />
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
