/** Load of the workers while a task ran: GPU memory and utilization, or main memory without a GPU. */
import { useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import { api, ask } from "../../api/client";
import { workersQuery } from "../../api/queries";
import type { LoadSample, TaskAnswer, WorkerView } from "../../api/schema";
import type { Zoom } from "../../lib/chartview";
import { type Axis, type Point, stepsAt } from "../../lib/series";
import { Chart, COLORS, type Line } from "../../parts/Chart";

const MOST_SAMPLES = 500;
const REFRESH_MS = 30_000;
const GIB = 1024 ** 3;

interface Seen {
  task: TaskAnswer;
  /** Origin of the time axis. */
  start: string;
  /** Training points: they map a time to a step. */
  points: readonly Point[];
  axis: Axis;
  zoom: Zoom;
  onZoom: (zoom: Zoom) => void;
}

/** Time of a task on a worker; without an end, it is still there. */
interface Stay {
  worker_id: string;
  since: string;
  until?: string;
}

export function Machines({ task, start, ...seen }: Seen) {
  const stays = staysOf(task, start);
  return stays.map((stay) => (
    <Machine key={stay.worker_id} {...seen} stay={stay} start={start} named={stays.length > 1} />
  ));
}

function staysOf(task: TaskAnswer, start: string): Stay[] {
  const stays = new Map<string, Stay>();
  for (const { worker_id, accepted_at, finished_at } of task.attempt_list ?? []) {
    if (!accepted_at) continue;
    const since = stays.get(worker_id)?.since ?? (Date.parse(accepted_at) > Date.parse(start) ? accepted_at : start);
    stays.set(worker_id, { worker_id, since, until: finished_at ?? undefined });
  }
  return [...stays.values()];
}

function Machine({
  stay: { worker_id, since, until },
  start,
  named,
  points,
  axis,
  zoom,
  onZoom,
}: Omit<Seen, "task"> & { stay: Stay; named: boolean }) {
  const workers = useQuery(workersQuery);
  const worker = workers.data?.items.find((each) => each.id === worker_id);
  const history = useQuery({
    queryKey: ["history", worker_id, since, until],
    queryFn: ({ signal }) =>
      ask(
        api.GET("/api/v1/workers/{worker_id}/history", {
          params: { path: { worker_id }, query: { since, until, max_points: MOST_SAMPLES } },
          signal,
        }),
      ),
    enabled: worker !== undefined,
    refetchInterval: until ? false : REFRESH_MS,
  });
  const samples = history.data?.samples;
  const drawn = useMemo(
    () => (worker && samples ? charts(worker, placed(samples, axis, Date.parse(start), points)) : []),
    [worker, samples, axis, start, points],
  );
  return drawn.map(({ title, lines }) => (
    <Chart
      key={title}
      title={named ? `${title} · ${worker_id}` : title}
      lines={lines}
      axis={axis}
      zoom={zoom}
      onZoom={onZoom}
    />
  ));
}

interface Placed {
  x: number;
  sample: LoadSample;
}

/** Place samples on the axis; on the step axis, only those between two training points. */
function placed(samples: LoadSample[], axis: Axis, start: number, points: readonly Point[]): Placed[] {
  const moments = samples.map((sample) => Date.parse(sample.at));
  const xs = axis === "time" ? moments.map((moment) => (moment - start) / 1000) : stepsAt(points, moments);
  const found: Placed[] = [];
  samples.forEach((sample, at) => {
    const x = xs[at];
    if (typeof x === "number" && x > (found.at(-1)?.x ?? Number.NEGATIVE_INFINITY)) found.push({ x, sample });
  });
  return found;
}

function charts(worker: WorkerView, samples: readonly Placed[]): { title: string; lines: Line[] }[] {
  if (samples.length < 2) return [];
  const xs = samples.map(({ x }) => x);
  const line = (label: string, at: number, value: (sample: LoadSample) => number | null | undefined): Line => ({
    label,
    color: COLORS[at % COLORS.length] ?? "#888888",
    column: { xs, ys: samples.map(({ sample }) => value(sample) ?? null) },
  });
  const gpus = worker.capabilities.gpus ?? [];
  if (gpus.length === 0) {
    const total = worker.capabilities.memory_total_bytes;
    const used = line("Used", 0, ({ load }) => (total - load.memory_free_bytes) / GIB);
    return [{ title: "Worker memory, GiB", lines: [used] }];
  }
  const of = (sample: LoadSample, uuid: string) => sample.load.gpus?.find((each) => each.uuid === uuid);
  const memory = gpus.map((gpu, at) =>
    line(`GPU ${gpu.index}`, at, (sample) => {
      const free = of(sample, gpu.uuid)?.memory_free_bytes;
      return free == null ? null : (gpu.memory_total_bytes - free) / GIB;
    }),
  );
  const busy = gpus.map((gpu, at) =>
    line(`GPU ${gpu.index}`, at, (sample) => of(sample, gpu.uuid)?.utilisation_percent),
  );
  return [
    { title: "GPU memory, GiB", lines: memory },
    { title: "GPU utilization, %", lines: busy },
  ];
}
