/** The machines: capabilities and tasks, admin actions, and how to join one. */
import { useQuery } from "@tanstack/react-query";
import { useNavigate, useSearch } from "@tanstack/react-router";
import { overviewQuery, workersQuery } from "../api/queries";
import { agentsQuery } from "../api/queries_server";
import type { TaskView, WorkerView } from "../api/schema";
import { Status, Time } from "../parts/bits";
import { Gauges, Users, WorkerLink, workerNote } from "../parts/Fleet";
import { Answer, Cut, Empty } from "../parts/states";
import { Agents } from "./workers/Agents";
import { Join } from "./workers/Join";
import { Tags, Verbs } from "./workers/Verbs";

export function Workers() {
  const workers = useQuery(workersQuery);
  const agents = useQuery(agentsQuery);
  const tasks = useQuery(overviewQuery).data?.running ?? [];
  const { join: joining = false } = useSearch({ from: "/workers" });
  const navigate = useNavigate({ from: "/workers" });
  const setJoining = (join: boolean) => void navigate({ search: { join: join || undefined }, replace: true });
  const polling = new Set(agents.data?.agents.map((each) => each.agent_id));
  return (
    <div className="page">
      <div className="row between">
        <h1>Workers</h1>
        <button type="button" aria-expanded={joining} onClick={() => setJoining(!joining)}>
          Join a machine
        </button>
      </div>
      {joining && <Join />}
      <Answer query={workers} rows={6}>
        {({ items, more }) => {
          const machines = items.filter((each) => !polling.has(each.id));
          return machines.length === 0 ? (
            <Empty title="No workers yet">
              Runs stay queued until a worker joins.
              {!joining && (
                <div>
                  <button type="button" onClick={() => setJoining(true)}>
                    Join a machine
                  </button>
                </div>
              )}
            </Empty>
          ) : (
            <>
              <div className="machines">
                {machines.map((worker) => (
                  <Card key={worker.id} worker={worker} tasks={tasks} />
                ))}
              </div>
              <Cut more={more} />
            </>
          );
        }}
      </Answer>
      <Agents agents={agents.data?.agents ?? []} />
    </div>
  );
}

function Card({ worker, tasks }: { worker: WorkerView; tasks: readonly TaskView[] }) {
  const able = worker.capabilities.executors.filter((each) => each.available);
  return (
    <section className="panel" id={worker.id} aria-label={worker.id}>
      <header>
        <div className="row tight">
          <h2>
            <WorkerLink id={worker.id} />
          </h2>
          <Status status={worker.status} note={workerNote(worker)} />
          {worker.status !== "online" && (
            <span className="muted small">
              seen <Time at={worker.last_seen_at} relative />
            </span>
          )}
        </div>
        <Verbs worker={worker} />
      </header>
      <div className="body">
        <Gauges worker={worker} />
        <Users worker={worker} tasks={tasks} />
        <div className="row between tight small muted">
          <span title={able.map((each) => each.kind).join(", ")}>
            {able.length} of {worker.capabilities.executors.length} task types
          </span>
          <Tags tags={worker.capabilities.tags ?? []} />
        </div>
      </div>
    </section>
  );
}
