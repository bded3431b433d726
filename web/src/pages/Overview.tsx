/** The overview: what runs, waits, is paused, has ended or failed, and the machines. */
import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import type { ReactNode } from "react";
import { overviewQuery, workersQuery } from "../api/queries";
import { pausedQuery, trainedLastQuery } from "../api/queries_overview";
import type { TaskView, WorkerView } from "../api/schema";
import { number } from "../lib/format";
import type { Status } from "../lib/words";
import { Panel, TaskLink, Time } from "../parts/bits";
import { Machine } from "../parts/Fleet";
import { useSession } from "../parts/session";
import { Answer, Empty } from "../parts/states";
import { Checklist } from "./overview/Checklist";
import { Failures, Paused, Results } from "./overview/Ended";
import { Running } from "./overview/Running";

const MACHINES_SHOWN = 12;

export function Overview() {
  const { mayChange } = useSession();
  const overview = useQuery(overviewQuery);
  const workers = useQuery(workersQuery);
  const trained = useQuery(trainedLastQuery).data ?? [];
  const paused = useQuery(pausedQuery).data ?? [];
  const failed = overview.data?.failed ?? [];
  const counts = overview.data?.tasks ?? {};
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
      <Checklist />
      <Tiles counts={counts} workers={workers.data?.items ?? []} />
      <div className="overview">
        <div className="stack">
          <Panel title="Running" actions={<All status="running,dispatched" />}>
            <Answer query={overview}>{({ running }) => <Running tasks={running} />}</Answer>
          </Panel>
          <Panel
            title={<Counted title="Queue" count={counts.queued} />}
            actions={<All status="pending,queued" />}
            flush
          >
            <Answer query={overview}>{({ queue }) => <Queue tasks={queue} counts={counts} />}</Answer>
          </Panel>
          {trained.length > 0 && (
            <Panel
              title="Recent results"
              actions={
                <>
                  {trained.length > 1 && (
                    <Link to="/compare" search={{ tasks: trained.map((task) => task.id).join(",") }}>
                      Compare
                    </Link>
                  )}
                  <All status="completed" />
                </>
              }
            >
              <Results tasks={trained} />
            </Panel>
          )}
        </div>
        <div className="stack">
          <Panel
            title={<Counted title="Machines" count={workers.data?.items.length} />}
            actions={<Link to="/workers">All</Link>}
          >
            <Answer query={workers}>
              {({ items }) => <Machines workers={items} tasks={overview.data?.running} />}
            </Answer>
          </Panel>
          {paused.length > 0 && (
            <Panel title={<Counted title="Paused" count={counts.paused} />} actions={<All status="paused" />}>
              <Paused tasks={paused} />
            </Panel>
          )}
          {failed.length > 0 && (
            <Panel title="Recent failures" actions={<All status="failed" />}>
              <Failures tasks={failed} />
            </Panel>
          )}
        </div>
      </div>
    </div>
  );
}

function All({ status }: { status: string }) {
  return (
    <Link to="/tasks" search={{ status }}>
      All
    </Link>
  );
}

function Counted({ title, count }: { title: string; count: number | undefined }) {
  return (
    <>
      {title} {!!count && <span className="muted num">{number(count)}</span>}
    </>
  );
}

const TILES: readonly (readonly [title: string, status: Status])[] = [
  ["Running", "running"],
  ["Queued", "queued"],
  ["Paused", "paused"],
  ["Completed", "completed"],
  ["Failed", "failed"],
];

/** Totals; each leads to its list. */
function Tiles({ counts, workers }: { counts: Record<string, number>; workers: readonly WorkerView[] }) {
  const online = workers.filter((worker) => worker.status === "online");
  const gpus = online.flatMap((worker) => worker.capabilities.gpus ?? []);
  const busy = online.flatMap((worker) => (worker.load?.gpus ?? []).flatMap((gpu) => gpu.utilisation_percent ?? []));
  return (
    <div className="tiles num">
      {TILES.map(([title, status]) => (
        <Link key={title} to="/tasks" search={{ status }} className="tile">
          <Tile title={title} value={number(counts[status] ?? 0)} tone={counts[status] ? status : "muted"} />
        </Link>
      ))}
      <Link to="/workers" className="tile">
        <Tile title="Machines" value={`${online.length} of ${workers.length}`} />
      </Link>
      {gpus.length > 0 && (
        <Link to="/workers" className="tile">
          <Tile
            title={`Use of ${gpus.length} ${gpus.length === 1 ? "GPU" : "GPUs"}`}
            value={busy.length ? `${Math.round(busy.reduce((sum, each) => sum + each, 0) / busy.length)}%` : "–"}
          />
        </Link>
      )}
    </div>
  );
}

function Tile({ title, value, tone }: { title: string; value: ReactNode; tone?: string }) {
  return (
    <>
      <strong className={tone && `tone ${tone}`}>{value}</strong>
      <span className="muted small">{title}</span>
    </>
  );
}

function Machines({ workers, tasks }: { workers: readonly WorkerView[]; tasks?: readonly TaskView[] }) {
  if (workers.length === 0)
    return (
      <Empty title="No workers yet">
        Runs stay queued until a worker joins.
        <div>
          <Link to="/workers" search={{ join: true }} className="button">
            Join a machine
          </Link>
        </div>
      </Empty>
    );
  return (
    <div className="stack">
      {workers.slice(0, MACHINES_SHOWN).map((worker) => (
        <Machine key={worker.id} worker={worker} tasks={tasks} />
      ))}
      {workers.length > MACHINES_SHOWN && <Link to="/workers">and {workers.length - MACHINES_SHOWN} more</Link>}
    </div>
  );
}

/** The head of the queue, then how many follow. */
function Queue({ tasks, counts }: { tasks: readonly TaskView[]; counts: Record<string, number> }) {
  const more = (counts.queued ?? 0) - tasks.length;
  const blocked = counts.pending ?? 0;
  const rest = [
    more > 0 && `${number(more)} more in the queue`,
    blocked > 0 && `${number(blocked)} waiting for earlier tasks of their workflow`,
  ].filter(Boolean);
  return (
    <>
      {tasks.length === 0 ? (
        <Empty title="Queue is empty" />
      ) : (
        <table>
          <thead>
            <tr>
              <th>Run</th>
              <th className="hide-phone">Kind</th>
              <th>Pending reason</th>
              <th className="num">Queued</th>
            </tr>
          </thead>
          <tbody>
            {tasks.map((task) => (
              <tr key={task.id}>
                <td>
                  <TaskLink id={task.id} name={task.name} />
                </td>
                <td className="muted hide-phone">{task.kind}</td>
                <td className="muted">{task.why ?? "next in the queue"}</td>
                <td className="muted num">
                  <Time at={task.queued_at ?? task.created_at} relative />
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      {rest.length > 0 && (
        <div className="muted small rest">
          <Link to="/tasks" search={{ status: "pending,queued" }}>
            {rest.join(" · ")}
          </Link>
        </div>
      )}
    </>
  );
}
