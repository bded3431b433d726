/** One machine in a few lines: memory, GPUs, who uses what. */
import { Link } from "@tanstack/react-router";
import type { WorkerView } from "../api/schema";
import { bytes, percent } from "../lib/format";
import { Bar, Status, TaskLink } from "./bits";

/** What a worker is, in the words that matter first. */
export function workerNote(worker: WorkerView): string {
  if (worker.status !== "online") return worker.status;
  if (worker.draining) return "draining";
  if (worker.cordoned) return "cordoned";
  if (worker.elastic_disabled) return "resting";
  return "online";
}

export function Machine({ worker }: { worker: WorkerView }) {
  const can = worker.capabilities;
  const free = worker.load?.memory_free_bytes ?? can.memory_free_bytes;
  const used = can.memory_total_bytes - free;
  const running = worker.running ?? [];
  return (
    <div className="machine">
      <div className="row between tight">
        <Link to="/workers" hash={worker.id} className="strong cut">
          {worker.id}
        </Link>
        <Status status={worker.status} note={workerNote(worker)} />
      </div>
      <Meter label="Memory" used={used} total={can.memory_total_bytes} />
      {(can.gpus ?? []).map((gpu) => {
        const now = worker.load?.gpus?.find((each) => each.uuid === gpu.uuid);
        const gpuFree = now?.memory_free_bytes ?? gpu.memory_free_bytes;
        const notes = [
          now?.utilisation_percent != null && `${Math.round(now.utilisation_percent)} % busy`,
          now?.power_w != null && `${Math.round(now.power_w)} W`,
          now?.temperature_c != null && `${Math.round(now.temperature_c)} °C`,
          (now?.in_use_by ?? gpu.in_use_by) && `used by ${now?.in_use_by ?? gpu.in_use_by}`,
        ].filter(Boolean);
        return (
          <div key={gpu.uuid}>
            <Meter
              label={`${gpu.index} · ${gpu.name}`}
              used={gpuFree == null ? undefined : gpu.memory_total_bytes - gpuFree}
              total={gpu.memory_total_bytes}
            />
            {notes.length > 0 && <div className="muted small">{notes.join(" · ")}</div>}
          </div>
        );
      })}
      <div className="small muted cut">
        {running.length === 0
          ? (can.gpus ?? []).length === 0
            ? `idle · ${can.cpu_count} CPUs, no GPU`
            : "idle"
          : running.map((id, at) => (
              <span key={id}>
                {at > 0 && ", "}
                <TaskLink id={id} />
              </span>
            ))}
      </div>
    </div>
  );
}

export function Meter({ label, used, total }: { label: string; used: number | undefined; total: number }) {
  const share = used === undefined ? 0 : percent(used, total);
  return (
    <div className="meter small">
      <span className="cut">{label}</span>
      <span className="num muted nowrap">
        {used === undefined ? "?" : bytes(used)} / {bytes(total)}
      </span>
      <Bar value={share} label={`${label}, in use`} tone={share > 92 ? "warn" : undefined} />
    </div>
  );
}
