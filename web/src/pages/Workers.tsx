/** The machines: what each has and runs, what an administrator may ask of it, and how to join one. */
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useState } from "react";
import { api, ask } from "../api/client";
import { workersQuery } from "../api/queries";
import type { WorkerView } from "../api/schema";
import { bytes, duration } from "../lib/format";
import { Confirm, Copyable, Panel, Status, Tabs, TaskLink, Time } from "../parts/bits";
import { Meter, workerNote } from "../parts/Fleet";
import { useSession } from "../parts/session";
import { Answer, Empty } from "../parts/states";

export function Workers() {
  const workers = useQuery(workersQuery);
  const [joining, setJoining] = useState(false);
  return (
    <div className="page">
      <div className="row between">
        <h1>Workers</h1>
        <button type="button" aria-expanded={joining} onClick={() => setJoining(!joining)}>
          Join a worker
        </button>
      </div>
      {joining && <Join />}
      <Answer query={workers} rows={6}>
        {({ items }) =>
          items.length === 0 ? (
            <Empty title="No worker has joined">Tasks wait until one does: “Join a worker” has the commands.</Empty>
          ) : (
            <div className="workers">
              {items.map((worker) => (
                <Worker key={worker.id} worker={worker} />
              ))}
            </div>
          )
        }
      </Answer>
    </div>
  );
}

type Way = "http" | "redis";
const WAYS = [
  ["http", "Over HTTP, also behind NAT"],
  ["redis", "Over Redis"],
] as const;

function Join() {
  const [way, setWay] = useState<Way>("http");
  const here = location.origin;
  const text =
    way === "http"
      ? `export ORCHESTRATOR_BASE_URL=${here}\nexport TUNEFLEET_WORKER_KEY=KEY    # of the role worker: tunefleet keys create NAME --role worker\ntunefleet worker`
      : `export REDIS_URL=redis://HOST:6379/0\nexport ORCHESTRATOR_BASE_URL=${here}\ntunefleet worker`;
  return (
    <Panel title="On the machine that is to join">
      <div className="stack">
        <Tabs tabs={WAYS} chosen={way} onChoose={setWay} />
        <Copyable text={'pip install "tunefleet[train]"'} />
        <Copyable text={text} />
        <div className="muted small">
          {way === "http"
            ? "The worker opens every connection itself: the machine needs no open port."
            : "For large fleets: both ends need the same Redis, and the worker needs no key."}
        </div>
      </div>
    </Panel>
  );
}

function Worker({ worker }: { worker: WorkerView }) {
  const can = worker.capabilities;
  const free = worker.load?.memory_free_bytes ?? can.memory_free_bytes;
  const running = worker.running ?? [];
  const able = can.executors.filter((each) => each.available);
  const unable = can.executors.filter((each) => !each.available);
  return (
    <section className="panel" id={worker.id} aria-label={worker.id}>
      <header>
        <div className="row tight">
          <h2>{worker.id}</h2>
          <Status status={worker.status} note={workerNote(worker)} />
          <span className="muted small">
            {worker.status === "online" ? null : (
              <>
                seen <Time at={worker.last_seen_at} relative />
              </>
            )}
          </span>
        </div>
        <Verbs worker={worker} />
      </header>
      <div className="body stack">
        <Meter label="Memory" used={can.memory_total_bytes - free} total={can.memory_total_bytes} />
        {(can.gpus ?? []).map((gpu) => {
          const now = worker.load?.gpus?.find((each) => each.uuid === gpu.uuid);
          const gpuFree = now?.memory_free_bytes ?? gpu.memory_free_bytes;
          return (
            <div key={gpu.uuid}>
              <Meter
                label={`GPU ${gpu.index} · ${gpu.name}`}
                used={gpuFree == null ? undefined : gpu.memory_total_bytes - gpuFree}
                total={gpu.memory_total_bytes}
              />
              <div className="muted small num">
                {now?.utilisation_percent != null && `${Math.round(now.utilisation_percent)} % busy `}
                {now?.power_w != null && `${Math.round(now.power_w)} W `}
                {now?.temperature_c != null && `${Math.round(now.temperature_c)} °C `}
                {now?.in_use_by && `used by ${now.in_use_by}`}
              </div>
            </div>
          );
        })}
        <dl className="facts">
          <dt>Runs</dt>
          <dd>
            {running.length === 0 ? (
              <span className="muted">nothing</span>
            ) : (
              running.map((id) => (
                <div key={id}>
                  <TaskLink id={id} />
                </div>
              ))
            )}
          </dd>
          <dt>Machine</dt>
          <dd>
            {can.hostname}, {can.cpu_count} × {can.cpu_model || "CPU"}
            {(can.gpus ?? []).length === 0 && ", no GPU"}
          </dd>
          <dt>System</dt>
          <dd>
            {can.platform}
            {can.cuda_version && `, CUDA ${can.cuda_version}`}
            {can.driver_version && `, driver ${can.driver_version}`}
          </dd>
          <dt>Disk</dt>
          <dd className="num">{bytes(worker.load?.disk_free_bytes ?? can.disk_free_bytes)} free</dd>
          <dt>Load</dt>
          <dd className="num">
            {worker.load?.load_1m?.toFixed(1) ?? "–"}
            {worker.load?.uptime_s != null && <span className="muted"> · up {duration(worker.load.uptime_s)}</span>}
          </dd>
          <dt>Link</dt>
          <dd>
            {can.link} <span className="muted">· Tunefleet {can.version}</span>
          </dd>
          {(can.tags ?? []).length > 0 && (
            <>
              <dt>Tags</dt>
              <dd>{can.tags.join(", ")}</dd>
            </>
          )}
          <dt>Can run</dt>
          <dd>{able.map((each) => each.kind).join(", ")}</dd>
        </dl>
        {unable.length > 0 && (
          <details>
            <summary className="muted small">{unable.length} kinds that it cannot run, and why</summary>
            <dl className="facts small">
              {unable.map((each) => (
                <Unable key={each.kind} kind={each.kind} reason={each.reason ?? ""} />
              ))}
            </dl>
          </details>
        )}
        <div className="small">
          <Link to="/tasks" search={{ worker: worker.id }}>
            Its tasks
          </Link>
        </div>
      </div>
    </section>
  );
}

function Unable({ kind, reason }: { kind: string; reason: string }) {
  return (
    <>
      <dt>{kind}</dt>
      <dd>{reason}</dd>
    </>
  );
}

function Verbs({ worker }: { worker: WorkerView }) {
  const { isAdmin } = useSession();
  const client = useQueryClient();
  const [asking, setAsking] = useState(false);
  const path = { params: { path: { worker_id: worker.id } } };
  const verb = useMutation({
    mutationFn: (what: "cordon" | "uncordon" | "drain") => ask(api.POST(`/api/v1/workers/{worker_id}/${what}`, path)),
    onSettled: () => client.invalidateQueries({ queryKey: ["workers"] }),
  });
  const forget = useMutation({
    mutationFn: () => ask(api.DELETE("/api/v1/workers/{worker_id}", path)),
    onSettled: () => client.invalidateQueries({ queryKey: ["workers"] }),
  });
  if (!isAdmin) return null;
  const gone = worker.status === "lost" || worker.status === "offline";
  return (
    <div className="row tight">
      {worker.cordoned || worker.draining ? (
        <button type="button" className="quiet" onClick={() => verb.mutate("uncordon")}>
          Uncordon
        </button>
      ) : (
        <button
          type="button"
          className="quiet"
          title="Nothing new; what it has goes on"
          onClick={() => verb.mutate("cordon")}
        >
          Cordon
        </button>
      )}
      {!gone && !worker.draining && (
        <button type="button" className="quiet" onClick={() => setAsking(true)}>
          Drain
        </button>
      )}
      {gone && (
        <button type="button" className="quiet" onClick={() => forget.mutate()}>
          Forget
        </button>
      )}
      {asking && (
        <Confirm
          title={`Drain ${worker.id}?`}
          action="Drain it"
          onDo={() => verb.mutate("drain")}
          onClose={() => setAsking(false)}
        >
          It finishes what it has, and then leaves. It stays cordoned until it is uncordoned.
        </Confirm>
      )}
    </div>
  );
}
