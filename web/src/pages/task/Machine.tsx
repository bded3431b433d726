/** How the worker stood while the task ran: its GPUs' memory and utilisation, or the machine's memory without any. */
import { useQuery } from "@tanstack/react-query";
import { api, ask } from "../../api/client";
import { workersQuery } from "../../api/queries";
import type { LoadSample, TaskAnswer, WorkerView } from "../../api/schema";
import type { Zoom } from "../../lib/chartview";
import { Chart, COLORS, type Line } from "../../parts/Chart";

const MOST_SAMPLES = 500;
const REFRESH_MS = 30_000;
const GIB = 1024 ** 3;

export function Machine({
  task,
  start,
  zoom,
  onZoom,
}: {
  task: TaskAnswer;
  start: string;
  zoom: Zoom;
  onZoom: (zoom: Zoom) => void;
}) {
  const workers = useQuery(workersQuery);
  const worker = workers.data?.items.find((each) => each.id === task.worker_id);
  const history = useQuery({
    queryKey: ["history", task.worker_id, start, task.finished_at],
    queryFn: ({ signal }) =>
      ask(
        api.GET("/api/v1/workers/{worker_id}/history", {
          params: {
            path: { worker_id: task.worker_id ?? "" },
            query: { since: start, until: task.finished_at ?? undefined, max_points: MOST_SAMPLES },
          },
          signal,
        }),
      ),
    enabled: worker !== undefined,
    refetchInterval: task.finished_at ? false : REFRESH_MS,
  });
  if (!worker || !history.data || history.data.samples.length < 2) return null;
  return charts(worker, history.data.samples, Date.parse(start)).map(({ title, lines }) => (
    <Chart key={title} title={title} lines={lines} axis="time" zoom={zoom} onZoom={onZoom} />
  ));
}

function charts(worker: WorkerView, samples: LoadSample[], start: number): { title: string; lines: Line[] }[] {
  const xs = samples.map((sample) => (Date.parse(sample.at) - start) / 1000);
  const line = (label: string, at: number, value: (sample: LoadSample) => number | null | undefined): Line => ({
    label,
    color: COLORS[at % COLORS.length] ?? "#888888",
    column: { xs, ys: samples.map((sample) => value(sample) ?? null) },
  });
  const gpus = worker.capabilities.gpus ?? [];
  if (gpus.length === 0) {
    const total = worker.capabilities.memory_total_bytes;
    const used = line("Used", 0, ({ load }) => (total - load.memory_free_bytes) / GIB);
    return [{ title: "Memory of the worker, GiB", lines: [used] }];
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
    { title: "GPU utilisation, %", lines: busy },
  ];
}
