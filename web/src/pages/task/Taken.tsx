/** Resource usage of a task's own processes: its share of the machine. */
import { useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import { pointsQuery } from "../../api/queries";
import type { TaskAnswer } from "../../api/schema";
import type { Zoom } from "../../lib/chartview";
import { type Axis, type Column, column, type Point } from "../../lib/series";
import { isFinal } from "../../lib/words";
import { Chart, COLORS, type Line } from "../../parts/Chart";

const GIB = 1024 ** 3;
const CHARTS: readonly { title: string; lines: readonly (readonly [name: string, label: string])[]; unit: number }[] = [
  {
    title: "GPU memory of the run, GiB",
    lines: [
      ["gpu_bytes", "Taken"],
      ["gpu_allocated_bytes", "In use"],
    ],
    unit: GIB,
  },
  { title: "Memory of the run, GiB", lines: [["rss_bytes", "Taken"]], unit: GIB },
  { title: "Throughput, tokens/s", lines: [["tokens_per_s", "Tokens per second"]], unit: 1 },
  { title: "Step time, s", lines: [["step_time_s", "Seconds"]], unit: 1 },
];

export function Taken({
  task,
  start,
  axis,
  zoom,
  onZoom,
}: {
  task: TaskAnswer;
  start: string;
  axis: Axis;
  zoom: Zoom;
  onZoom: (zoom: Zoom) => void;
}) {
  const taken = useQuery(pointsQuery(task.id, "system", isFinal(task.status)));
  const charts = useMemo(() => chartsOf(taken.data?.points ?? [], start, axis), [taken.data, start, axis]);
  return charts.map(({ title, lines }) => (
    <Chart key={title} title={title} lines={lines} axis={axis} zoom={zoom} onZoom={onZoom} />
  ));
}

function chartsOf(samples: readonly Point[], start: string, axis: Axis): { title: string; lines: Line[] }[] {
  // In all charts, time starts at the first training point.
  const points: Point[] = [{ step: 0, at: start, values: {} }, ...samples];
  return CHARTS.map(({ title, lines, unit }) => ({
    title,
    lines: lines.flatMap(([name, label], at): Line[] => {
      const found = inUnits(column(points, name, axis), unit);
      const color = COLORS[at % COLORS.length] ?? "#888888";
      return found.xs.length < 2 ? [] : [{ label, color, column: found }];
    }),
  })).filter(({ lines }) => lines.length > 0);
}

function inUnits({ xs, ys }: Column, unit: number): Column {
  return { xs, ys: ys.map((y) => (y === null ? null : y / unit)) };
}
