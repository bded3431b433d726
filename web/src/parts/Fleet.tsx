/** A machine at a glance: memory, GPUs with memory and utilization, and their users. */
import { Link } from "@tanstack/react-router";
import type { ReactNode } from "react";
import type { Gpu, GpuLoad, TaskView, WorkerView } from "../api/schema";
import { bytes, percent } from "../lib/format";
import { Bar, Status, TaskLink } from "./bits";
import "../styles/fleet.css";

const GIB = 2 ** 30;

/** Status note of a worker. */
export function workerNote(worker: WorkerView): string {
  if (worker.status !== "online") return worker.status;
  if (worker.draining) return "draining";
  if (worker.cordoned) return "cordoned";
  if (worker.elastic_disabled) return "standby";
  return "online";
}

/** `plain`: inside of a line of text. */
export function WorkerLink({ id, plain }: { id: string; plain?: boolean }) {
  return (
    <Link to="/workers/$workerId" params={{ workerId: id }} className={plain ? undefined : "strong cut"}>
      {id}
    </Link>
  );
}

/** A worker in a list of machines; `tasks`: the running tasks, for their names. */
export function Machine({ worker, tasks = [] }: { worker: WorkerView; tasks?: readonly TaskView[] }) {
  return (
    <div className="machine">
      <div className="row between tight">
        <WorkerLink id={worker.id} />
        <Status status={worker.status} note={workerNote(worker)} />
      </div>
      <Gauges worker={worker} />
      <Users worker={worker} tasks={tasks} />
    </div>
  );
}

/** Main memory and GPUs, one line each. */
export function Gauges({ worker }: { worker: WorkerView }) {
  const can = worker.capabilities;
  const gpus = can.gpus ?? [];
  const free = worker.load?.memory_free_bytes ?? can.memory_free_bytes;
  const load = worker.load?.load_1m;
  const busy = load == null ? undefined : percent(load, can.cpu_count);
  return (
    <div className="gauges small num">
      <div className="gauge muted" aria-hidden="true">
        <span />
        <span className="over-two">Memory in use</span>
        <span className="over-two">Utilization</span>
      </div>
      <Gauge
        name="Host"
        fill={{ label: "Memory", used: can.memory_total_bytes - free, total: can.memory_total_bytes }}
        busy={busy}
        busyLabel={`Load of ${can.cpu_count} CPUs`}
        title="Main memory in use, and load of the CPUs"
      >
        {can.cpu_count} CPUs
      </Gauge>
      {groups(gpus).map(([title, members]) => (
        <div key={title + members[0]?.uuid} className="gpus">
          <div className="muted cut">{title}</div>
          {members.map((gpu) => (
            <GpuGauge key={gpu.uuid} gpu={gpu} now={worker.load?.gpus?.find((each) => each.uuid === gpu.uuid)} />
          ))}
        </div>
      ))}
    </div>
  );
}

/** Adjacent GPUs of the same model share one heading. */
function groups(gpus: readonly Gpu[]): [string, Gpu[]][] {
  const found: [string, Gpu[]][] = [];
  for (const gpu of gpus) {
    const last = found.at(-1);
    if (last && last[1][0]?.name === gpu.name) last[1].push(gpu);
    else found.push([gpu.name, [gpu]]);
  }
  return found.map(([name, members]) => [members.length > 1 ? `${members.length} × ${name}` : name, members]);
}

function GpuGauge({ gpu, now }: { gpu: Gpu; now: GpuLoad | undefined }) {
  const free = now?.memory_free_bytes ?? gpu.memory_free_bytes;
  const user = now ? now.in_use_by : gpu.in_use_by;
  return (
    <>
      <Gauge
        name={`GPU ${gpu.index}`}
        fill={{
          label: `Memory of GPU ${gpu.index}`,
          used: free == null ? undefined : gpu.memory_total_bytes - free,
          total: gpu.memory_total_bytes,
        }}
        busy={now?.utilisation_percent ?? undefined}
        busyLabel={`GPU ${gpu.index} is busy`}
        title={`GPU ${gpu.index}: memory in use, utilization, temperature${now?.power_w == null ? "" : `; ${Math.round(now.power_w)} W`}`}
      >
        {now?.temperature_c != null && `${Math.round(now.temperature_c)} °C`}
      </Gauge>
      {user && (
        <div className="user muted cut">
          GPU {gpu.index} is used by {user}
        </div>
      )}
    </>
  );
}

function Gauge({
  name,
  fill,
  busy,
  busyLabel,
  title,
  children,
}: {
  name: string;
  fill: { label: string; used: number | undefined; total: number };
  busy: number | undefined;
  busyLabel: string;
  title?: string;
  children: ReactNode;
}) {
  const share = fill.used === undefined ? 0 : percent(fill.used, fill.total);
  const words = fill.used === undefined ? bytes(fill.total) : `${short(fill.used)} / ${bytes(fill.total)}`;
  return (
    <div className="gauge" title={title}>
      <span className="muted">{name}</span>
      <Bar value={share} label={`${fill.label}, in use`} tone={share > 92 ? "warn" : undefined} />
      <span className="nowrap">{words}</span>
      {busy === undefined ? (
        <span className="none" />
      ) : (
        <Bar value={Math.min(100, busy)} label={`${busyLabel}, in percent`} tone="busy" />
      )}
      <span className="nowrap">{busy !== undefined && `${Math.round(busy)}%`}</span>
      <span className="muted nowrap">{children}</span>
    </div>
  );
}

/** `41.2`; the unit follows with the total. */
function short(size: number): string {
  return size >= GIB ? (size / GIB).toFixed(1) : bytes(size);
}

export function Users({ worker, tasks }: { worker: WorkerView; tasks: readonly TaskView[] }) {
  const running = worker.running ?? [];
  if (running.length === 0) return <div className="small muted">idle</div>;
  return (
    <div className="small cut">
      {running.map((id, at) => (
        <span key={id}>
          {at > 0 && ", "}
          <TaskLink id={id} name={tasks.find((task) => task.id === id)?.name} />
        </span>
      ))}
    </div>
  );
}
