/** One worker: details, load, tasks, and supported task types. */
import { useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useParams, useSearch } from "@tanstack/react-router";
import type { ReactNode } from "react";
import { ApiError } from "../../api/client";
import { overviewQuery, workersQuery } from "../../api/queries";
import { serverQuery, tasksOfWorkerQuery } from "../../api/queries_server";
import type { TaskView, WorkerView } from "../../api/schema";
import { bytes, duration, ranSeconds } from "../../lib/format";
import { isFinal } from "../../lib/words";
import { Panel, Progress, Status, TaskLink, Time } from "../../parts/bits";
import { useNow } from "../../parts/clock";
import { Gauges, workerNote } from "../../parts/Fleet";
import { Answer, Empty, Failed } from "../../parts/states";
import { SPANS } from "../../router";
import { Loads } from "./Loads";
import { Tags, Verbs } from "./Verbs";

export function Worker() {
  const { workerId } = useParams({ from: "/workers/$workerId" });
  const workers = useQuery(workersQuery);
  return (
    <div className="page">
      {!workers.data?.items.some((each) => each.id === workerId) && <h1>{workerId}</h1>}
      <Answer query={workers} rows={8}>
        {({ items }) => {
          const worker = items.find((each) => each.id === workerId);
          return worker ? <Shown key={worker.id} worker={worker} /> : <Failed error={missing(workerId)} />;
        }}
      </Answer>
    </div>
  );
}

function missing(id: string): ApiError {
  return new ApiError({
    type: "",
    title: "Not found",
    status: 404,
    detail: `Worker ${id} not found.`,
    hint: "It was removed, or the name is wrong.",
  });
}

function Shown({ worker }: { worker: WorkerView }) {
  const { hours = "1" } = useSearch({ from: "/workers/$workerId" });
  const navigate = useNavigate({ from: "/workers/$workerId" });
  return (
    <>
      <div className="row between">
        <div className="row">
          <h1>{worker.id}</h1>
          <Status status={worker.status} note={workerNote(worker)} />
          <Tags tags={worker.capabilities.tags ?? []} />
        </div>
        <Verbs worker={worker} alone />
      </div>
      <div className="row between">
        <div className="row muted small facts-line">
          <span>owner {worker.owner}</span>
          <span>
            joined <Time at={worker.registered_at} relative />
          </span>
          <span>
            seen <Time at={worker.last_seen_at} relative />
          </span>
          {worker.load?.uptime_s != null && <span>up {duration(worker.load.uptime_s)}</span>}
        </div>
        <fieldset className="plain chips" aria-label="Time shown">
          {SPANS.map((span) => (
            <button
              key={span}
              type="button"
              aria-pressed={span === hours}
              onClick={() => void navigate({ search: { hours: span }, replace: true })}
            >
              {span} h
            </button>
          ))}
        </fieldset>
      </div>
      <Loads worker={worker} hours={Number(hours)} />
      <div className="beside">
        <div className="stack">
          <Tasks worker={worker} />
          <Kinds worker={worker} />
        </div>
        <About worker={worker} />
      </div>
    </>
  );
}

function Tasks({ worker }: { worker: WorkerView }) {
  const tasks = useQuery(tasksOfWorkerQuery(worker.id));
  // Running tasks are updated live.
  const live = new Map(useQuery(overviewQuery).data?.running.map((task) => [task.id, task]));
  return (
    <Panel
      title="Runs"
      actions={
        <Link to="/tasks" search={{ worker: worker.id }}>
          All
        </Link>
      }
      flush
    >
      <Answer query={tasks}>
        {({ items }) =>
          items.length === 0 ? (
            <Empty title="No runs yet" />
          ) : (
            <table>
              <thead>
                <tr>
                  <th>Run</th>
                  <th className="hide-phone">Kind</th>
                  <th>Status</th>
                  <th className="hide-phone">Started</th>
                  <th className="num">Duration</th>
                </tr>
              </thead>
              <tbody>
                {items.map((task) => (
                  <Row key={task.id} task={live.get(task.id) ?? task} />
                ))}
              </tbody>
            </table>
          )
        }
      </Answer>
    </Panel>
  );
}

function Row({ task }: { task: TaskView }) {
  return (
    <tr>
      <td>
        <TaskLink id={task.id} name={task.name} />
      </td>
      <td className="muted hide-phone">{task.kind}</td>
      <td>
        {!isFinal(task.status) && task.progress ? (
          <Progress progress={task.progress} compact />
        ) : (
          <Status status={task.status} />
        )}
      </td>
      <td className="muted nowrap hide-phone">
        <Time at={task.started_at ?? task.queued_at} relative />
      </td>
      <td className="num muted">
        <Ran task={task} />
      </td>
    </tr>
  );
}

function Ran({ task }: { task: TaskView }) {
  return <>{duration(ranSeconds(task, useNow()))}</>;
}

function Kinds({ worker }: { worker: WorkerView }) {
  const { executors } = worker.capabilities;
  const unable = executors.filter((each) => !each.available);
  return (
    <Panel title="Task types">
      <div className="stack">
        <Tags tags={executors.filter((each) => each.available).map((each) => each.kind)} />
        {unable.length > 0 && (
          <dl className="facts small">
            {unable.map((each) => (
              <Unable key={each.kind} kind={each.kind} reason={each.reason ?? "not available"} />
            ))}
          </dl>
        )}
      </div>
    </Panel>
  );
}

function Unable({ kind, reason }: { kind: string; reason: string }) {
  return (
    <>
      <dt>{kind}</dt>
      <dd className="muted">{reason}</dd>
    </>
  );
}

function About({ worker }: { worker: WorkerView }) {
  const can = worker.capabilities;
  const server = useQuery(serverQuery);
  const other = server.data && can.version !== server.data.version;
  const rows: [string, string | null | undefined | false][] = [
    ["Hostname", can.hostname],
    ["CPU", `${can.cpu_count} × ${can.cpu_model || "CPU"}`],
    ["System", can.platform],
    ["CUDA", can.cuda_version && `${can.cuda_version}, driver ${can.driver_version}`],
    ["Disk", `${bytes(worker.load?.disk_free_bytes ?? can.disk_free_bytes)} free`],
    ["Transport", can.link === "redis" ? "Redis" : "HTTP"],
    ["Address", can.address],
    ["Tunefleet", other ? `${can.version}; server runs ${server.data?.version}` : can.version],
    [
      "Slots",
      Object.entries(can.slots)
        .map(([name, count]) => `${count} ${name}`)
        .join(", "),
    ],
    ["Custom code", can.allow_code ? "allowed" : "not allowed"],
    ["Secrets", can.secrets?.join(", ")],
    ["Environments", can.environments?.join(", ")],
    ["Cached models", can.cached_models?.join(", ")],
    ["Price", `${can.cost_per_hour} per hour`],
  ];
  return (
    <Panel title="Machine">
      <div className="stack">
        <Gauges worker={worker} />
        <dl className="facts small">
          {rows
            .filter(([, value]) => value)
            .map(([name, value]) => (
              <Fact key={name} name={name}>
                {value}
              </Fact>
            ))}
        </dl>
      </div>
    </Panel>
  );
}

function Fact({ name, children }: { name: string; children: ReactNode }) {
  return (
    <>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </>
  );
}
