/** The first page: what runs, what waits, what failed, and on which machines. */
import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { api, ask } from "../api/client";
import { someTasksQuery, workersQuery } from "../api/queries";
import type { TaskView } from "../api/schema";
import { duration, number, ranSeconds } from "../lib/format";
import { isTraining, plain } from "../lib/words";
import { Panel, Progress, Sparkline, TaskLink, Time } from "../parts/bits";
import { useNow } from "../parts/clock";
import { Machine } from "../parts/Fleet";
import { useSession } from "../parts/session";
import { Answer, Empty } from "../parts/states";

const MANY = 100;
const SPARK_POINTS = 80;

export function Overview() {
  const { mayChange } = useSession();
  const running = useQuery(someTasksQuery("running,dispatched", MANY));
  const waiting = useQuery(someTasksQuery("queued,pending,paused", MANY));
  const failed = useQuery(someTasksQuery("failed", 6));
  const workers = useQuery(workersQuery);
  return (
    <div className="page">
      <div className="row between">
        <h1>Overview</h1>
        {mayChange && (
          <Link to="/new" className="button primary">
            New task
          </Link>
        )}
      </div>
      <div className="columns">
        <div className="stack">
          <Panel title={<>Running {count(running.data?.items.length)}</>}>
            <Answer query={running}>
              {({ items }) =>
                items.length === 0 ? (
                  <Empty title="Nothing runs">
                    {mayChange ? <Link to="/new">Begin with an example</Link> : "Tasks appear here by themselves."}
                  </Empty>
                ) : (
                  <ul className="running">
                    {items.slice(0, 20).map((task) => (
                      <Running key={task.id} task={task} />
                    ))}
                  </ul>
                )
              }
            </Answer>
          </Panel>
          <Panel
            title={<>Queue {count(waiting.data?.items.length)}</>}
            actions={
              <Link to="/tasks" search={{ status: "queued,pending,paused" }}>
                all
              </Link>
            }
            flush
          >
            <Answer query={waiting}>
              {({ items }) => (items.length === 0 ? <Empty title="Nothing waits" /> : <Queue tasks={items} />)}
            </Answer>
          </Panel>
        </div>
        <div className="stack">
          <Panel title={<>Workers {count(workers.data?.items.length)}</>} actions={<Link to="/workers">all</Link>}>
            <Answer query={workers}>
              {({ items }) =>
                items.length === 0 ? (
                  <Empty title="No worker has joined">
                    <Link to="/workers">How to join one</Link>
                  </Empty>
                ) : (
                  <div className="stack">
                    {items.slice(0, 12).map((worker) => (
                      <Machine key={worker.id} worker={worker} />
                    ))}
                  </div>
                )
              }
            </Answer>
          </Panel>
          <Panel
            title="Newest failures"
            actions={
              <Link to="/tasks" search={{ status: "failed" }}>
                all
              </Link>
            }
          >
            <Answer query={failed}>
              {({ items }) =>
                items.length === 0 ? (
                  <Empty title="None" />
                ) : (
                  <ul className="failures">
                    {items.map((task) => (
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

function count(found: number | undefined) {
  if (found === undefined) return null;
  return <span className="muted num">{found >= MANY ? `${MANY}+` : found}</span>;
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
      {isTraining(task.kind) ? <Loss id={task.id} /> : <span />}
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

function Loss({ id }: { id: string }) {
  const query = useQuery({
    queryKey: ["metrics", id, "spark"],
    queryFn: ({ signal }) =>
      ask(
        api.GET("/api/v1/tasks/{task_id}/metrics", {
          params: { path: { task_id: id }, query: { names: "loss", max_points: SPARK_POINTS } },
          signal,
        }),
      ),
  });
  const values = (query.data?.points ?? [])
    .map((point) => point.values.loss)
    .filter((value): value is number => typeof value === "number");
  return (
    <div className="loss">
      <Sparkline values={values} label={`Loss, now ${number(values.at(-1))}`} />
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
          <th>Task</th>
          <th className="hide-phone">Kind</th>
          <th>Why it waits</th>
          <th>Since</th>
        </tr>
      </thead>
      <tbody>
        {tasks
          .slice(-12)
          .reverse()
          .map((task) => (
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
