/** Charts of what a run uses: its own processes, and the machines that it runs on. Pure. */
import type { AttemptView, LoadSample, WorkerView } from "../api/schema";
import { type ChartSpec, colorAt, type Line } from "./charts";
import type { Group } from "./metrics";
import { type Axis, type Column, column, type Place, type Point, stepsAt } from "./series";

const GIB = 1024 ** 3;

const OF_PROCESSES: readonly {
  id: string;
  title: string;
  unit: string;
  group: Group;
  lines: readonly (readonly [name: string, label: string])[];
  size: number;
}[] = [
  {
    id: "throughput",
    title: "Throughput",
    unit: "tokens/s",
    group: "speed",
    lines: [["tokens_per_s", "Throughput"]],
    size: 1,
  },
  { id: "step-time", title: "Step time", unit: "s", group: "speed", lines: [["step_time_s", "Step time"]], size: 1 },
  {
    id: "gpu-memory-run",
    title: "GPU memory of the run",
    unit: "GiB",
    group: "hardware",
    lines: [
      ["gpu_bytes", "Reserved"],
      ["gpu_allocated_bytes", "Allocated"],
    ],
    size: GIB,
  },
  {
    id: "memory-run",
    title: "Memory of the run",
    unit: "GiB",
    group: "hardware",
    lines: [["rss_bytes", "Resident"]],
    size: GIB,
  },
];

/** Resource usage of a task's own processes: its share of the machine. */
export function processCharts(samples: readonly Point[], axis: Axis, place: Place): ChartSpec[] {
  return OF_PROCESSES.map(({ id, title, unit, group, lines, size }) => ({
    id,
    title,
    unit,
    group,
    lines: lines.flatMap(([name, label], at): Line[] => {
      const { xs, ys } = column(samples, name, axis, place);
      if (xs.length < 2) return [];
      return [
        { label, raw: name, color: colorAt(at), column: { xs, ys: ys.map((y) => (y === null ? null : y / size)) } },
      ];
    }),
  })).filter(({ lines }) => lines.length > 0);
}

/** Time of a task on a worker; without an end, it is still there. */
export interface Stay {
  worker_id: string;
  since: string;
  until?: string;
}

export function staysOf(attempts: readonly AttemptView[], start: string): Stay[] {
  const stays = new Map<string, Stay>();
  for (const { worker_id, accepted_at, finished_at } of attempts) {
    if (!accepted_at) continue;
    const since = stays.get(worker_id)?.since ?? (Date.parse(accepted_at) > Date.parse(start) ? accepted_at : start);
    stays.set(worker_id, { worker_id, since, until: finished_at ?? undefined });
  }
  return [...stays.values()];
}

/**
 * GPU memory and utilization of a worker while a task ran, or main memory without a GPU.
 *
 * @param points Training points: they map a time to a step.
 */
export function machineCharts(
  worker: WorkerView,
  samples: readonly LoadSample[],
  points: readonly Point[],
  axis: Axis,
  place: Place,
): ChartSpec[] {
  const moments = samples.map((sample) => Date.parse(sample.at));
  // On the time axis a sample needs no step.
  const steps = axis === "time" ? moments : stepsAt(points, moments);
  const xs: number[] = [];
  const loads: LoadSample["load"][] = [];
  samples.forEach(({ load }, at) => {
    const step = steps[at];
    const x = step == null ? null : place(step, moments[at] ?? 0);
    if (x === null || x <= (xs.at(-1) ?? Number.NEGATIVE_INFINITY)) return;
    xs.push(x);
    loads.push(load);
  });
  if (xs.length < 2) return [];
  const line = (label: string, at: number, value: (load: LoadSample["load"]) => number | null | undefined): Line => {
    const found: Column = { xs, ys: loads.map((load) => value(load) ?? null) };
    return { label, color: colorAt(at), column: found };
  };
  const chart = (id: string, title: string, unit: string, lines: Line[]): ChartSpec => ({
    id,
    title,
    unit,
    group: "hardware",
    lines,
  });
  const gpus = worker.capabilities.gpus ?? [];
  if (gpus.length === 0) {
    const total = worker.capabilities.memory_total_bytes;
    const used = line("Used", 0, (load) => (total - load.memory_free_bytes) / GIB);
    return [chart("worker-memory", "Worker memory", "GiB", [used])];
  }
  const of = (load: LoadSample["load"], uuid: string) => load.gpus?.find((each) => each.uuid === uuid);
  const memory = gpus.map((gpu, at) =>
    line(`GPU ${gpu.index}`, at, (load) => {
      const free = of(load, gpu.uuid)?.memory_free_bytes;
      return free == null ? null : (gpu.memory_total_bytes - free) / GIB;
    }),
  );
  const busy = gpus.map((gpu, at) => line(`GPU ${gpu.index}`, at, (load) => of(load, gpu.uuid)?.utilisation_percent));
  return [chart("gpu-memory", "GPU memory", "GiB", memory), chart("gpu-utilization", "GPU utilization", "%", busy)];
}
