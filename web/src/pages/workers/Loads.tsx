/** Load of a worker: history from the server, followed by live samples. */
import { useQuery } from "@tanstack/react-query";
import { useEffect, useMemo, useState } from "react";
import { loadsQuery } from "../../api/queries_server";
import type { Load, LoadSample, WorkerView } from "../../api/schema";
import { lastHours } from "../../lib/loads";
import type { Column } from "../../lib/series";
import { Chart, COLORS, type Line, type Zoom } from "../../parts/Chart";
import { Answer, Empty } from "../../parts/states";

const GIB = 2 ** 30;

export function Loads({ worker, hours }: { worker: WorkerView; hours: number }) {
  const past = useQuery(loadsQuery(worker.id, hours));
  const samples = useTold(past.data, worker, hours);
  return (
    <Answer query={past} rows={4}>
      {() =>
        samples.length === 0 ? (
          <Empty title="No data in this period">Workers report with each heartbeat.</Empty>
        ) : (
          <Charts worker={worker} samples={samples} />
        )
      }
    </Answer>
  );
}

/** The history, and live samples received since, within the chosen period. */
function useTold(
  past: readonly LoadSample[] | undefined,
  { load, last_seen_at }: WorkerView,
  hours: number,
): readonly LoadSample[] {
  const [told, setTold] = useState<LoadSample[]>([]);
  // biome-ignore lint/correctness/useExhaustiveDependencies: refetched history includes the live samples
  useEffect(() => setTold([]), [past]);
  // biome-ignore lint/correctness/useExhaustiveDependencies: the time is that of the load
  useEffect(() => {
    if (load && last_seen_at) setTold((before) => [...before, { at: last_seen_at, load }]);
  }, [load]);
  return useMemo(() => lastHours([...(past ?? []), ...told], hours), [past, told, hours]);
}

function Charts({ worker, samples }: { worker: WorkerView; samples: readonly LoadSample[] }) {
  const [zoom, setZoom] = useState<Zoom>(null);
  const can = worker.capabilities;
  const gpus = can.gpus ?? [];
  const charts = useMemo(() => {
    const line = (label: string, color: number, pick: (load: Load) => number | null | undefined): Line => ({
      label,
      color: COLORS[color % COLORS.length] ?? "",
      column: columnOf(samples, pick),
    });
    const each = (pick: (load: Load, uuid: string, total: number) => number | null | undefined): Line[] =>
      gpus.map((gpu, at) => line(String(gpu.index), at, (load) => pick(load, gpu.uuid, gpu.memory_total_bytes)));
    const of = (load: Load, uuid: string) => load.gpus?.find((gpu) => gpu.uuid === uuid);
    const found: [title: string, unit: string | undefined, lines: Line[]][] = [
      [
        `Load of ${can.cpu_count} CPUs`,
        undefined,
        [line("1 min", 0, (load) => load.load_1m), line("15 min", 1, (load) => load.load_15m)],
      ],
      ["Memory in use", "GiB", [line("Memory", 0, (load) => (can.memory_total_bytes - load.memory_free_bytes) / GIB)]],
      ["GPU memory in use", "GiB", each((load, uuid, total) => gibUsed(of(load, uuid)?.memory_free_bytes, total))],
      ["GPU busy", "%", each((load, uuid) => of(load, uuid)?.utilisation_percent)],
      ["GPU temperature", "°C", each((load, uuid) => of(load, uuid)?.temperature_c)],
      ["GPU power", "W", each((load, uuid) => of(load, uuid)?.power_w)],
      ["Disk free", "GiB", [line("Disk", 0, (load) => load.disk_free_bytes / GIB)]],
    ];
    return found.filter(([, , lines]) => lines.some(({ column }) => column.ys.some((y) => y !== null)));
  }, [samples, gpus, can]);
  return (
    <div className="loads">
      {charts.map(([title, unit, lines]) => (
        <Chart key={title} {...{ title, unit, lines, zoom }} axis="time" clock onZoom={setZoom} height={150} />
      ))}
    </div>
  );
}

function gibUsed(free: number | null | undefined, total: number): number | null {
  return free == null ? null : (total - free) / GIB;
}

function columnOf(samples: readonly LoadSample[], pick: (load: Load) => number | null | undefined): Column {
  return {
    xs: samples.map((each) => Date.parse(each.at) / 1000),
    ys: samples.map((each) => tenths(pick(each.load))),
  };
}

/** Resolution of the samples. */
function tenths(value: number | null | undefined): number | null {
  return value == null ? null : Math.round(value * 10) / 10;
}
