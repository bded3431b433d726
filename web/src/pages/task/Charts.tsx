/** All series of a training, with one zoom, one axis and one smoothing for all of them. */
import { useQuery } from "@tanstack/react-query";
import { useNavigate, useSearch } from "@tanstack/react-router";
import { type ReactNode, useEffect, useMemo, useState } from "react";
import { followPoints } from "../../api/live";
import { metricsQuery, rangeQuery } from "../../api/queries";
import type { TaskAnswer } from "../../api/schema";
import type { ChartView, Zoom } from "../../lib/chartview";
import { type Column, column, csv, type Point, perplexity, smoothed } from "../../lib/series";
import { isFinal, metricName } from "../../lib/words";
import { Chart, COLORS, type Line } from "../../parts/Chart";
import { ChartBar, useChartView } from "../../parts/ChartBar";
import { Answer, Empty } from "../../parts/states";
import { Machine } from "./Machine";

interface Group {
  title: string;
  names: readonly string[];
  of?: (ys: readonly (number | null)[]) => (number | null)[];
}

const GROUPS: readonly Group[] = [
  { title: "Loss", names: ["loss", "eval_loss", "held_out_loss"] },
  { title: "Perplexity", names: ["loss", "eval_loss", "held_out_loss"], of: perplexity },
  { title: "Learning rate", names: ["learning_rate"] },
  { title: "Gradient norm", names: ["grad_norm"] },
  { title: "Tokens per second", names: ["train_tokens_per_second"] },
  { title: "Token accuracy", names: ["mean_token_accuracy", "eval_mean_token_accuracy"] },
];
/** Counters and times of evaluations: of no use as lines, unless somebody asks for all. */
const DULL = /(^|_)(runtime|samples_per_second|steps_per_second|preparation_time)$|^num_|^total_flos$/;
/** So long what is being saved is kept. */
const KEPT_MS = 60_000;
const EVALUATION = /^(eval_|held_out_)/;

export function Charts({ task }: { task: TaskAnswer }) {
  const search = useSearch({ from: "/tasks/$taskId" });
  const navigate = useNavigate({ from: "/tasks/$taskId" });
  const [view, setView] = useChartView(
    search,
    (to) => void navigate({ search: (old) => ({ ...old, ...to }), replace: true, resetScroll: false }),
  );
  useEffect(() => followPoints([task.id]), [task.id]);
  const metrics = useQuery(metricsQuery(task.id));
  const [all, setAll] = useState(false);
  const { axis, zoom } = view;
  const onZoom = (next: Zoom) => setView({ ...view, zoom: next });
  const finer = zoom !== null && axis === "step" && metrics.data?.thinned === true;
  const range = useQuery(rangeQuery(task.id, zoom?.[0] ?? 0, zoom?.[1] ?? 0, finer));
  const points = useMemo(
    () => zoomedIn(metrics.data?.points ?? [], finer ? range.data?.points : undefined),
    [metrics.data, finer, range.data],
  );
  return (
    <div className="stack">
      <ChartBar view={view} onChange={setView}>
        <button type="button" aria-pressed={all} onClick={() => setAll(!all)}>
          All metrics
        </button>
        <button
          type="button"
          disabled={points.length === 0}
          title={metrics.data?.thinned ? "The points that are drawn" : "All points"}
          onClick={() => download(`${task.id}.csv`, csv(points, metrics.data?.names ?? []))}
        >
          CSV
        </button>
      </ChartBar>
      <Answer query={metrics}>
        {(found) =>
          found.points.length === 0 ? (
            <Empty title="No metrics yet">
              {isFinal(task.status) ? "This task has logged none." : "They appear here as the training logs them."}
            </Empty>
          ) : (
            <Drawn {...{ view, all, points, onZoom }} names={found.names}>
              {axis === "time" && task.worker_id && found.points[0] && (
                <Machine task={task} start={found.points[0].at} zoom={zoom} onZoom={onZoom} />
              )}
            </Drawn>
          )
        }
      </Answer>
    </div>
  );
}

function download(name: string, text: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  link.download = name;
  link.click();
  // The browser reads it after this, and a busy one later.
  window.setTimeout(() => URL.revokeObjectURL(link.href), KEPT_MS);
}

/** Put the finer points of a zoom in place of the thinned ones. */
function zoomedIn(points: Point[], finer: readonly Point[] | undefined): Point[] {
  const [first, last] = [finer?.[0], finer?.at(-1)];
  if (!finer || !first || !last) return points;
  return [
    ...points.filter((point) => point.step < first.step),
    ...finer,
    ...points.filter((point) => point.step > last.step),
  ];
}

interface DrawnProps {
  points: Point[];
  names: string[];
  view: ChartView;
  all: boolean;
  onZoom: (zoom: Zoom) => void;
  children?: ReactNode;
}

function Drawn({ points, names, view, all, onZoom, children }: DrawnProps) {
  const { axis, log, weight, zoom } = view;
  const groups = useMemo(() => {
    const known = new Set(GROUPS.flatMap((group) => group.names));
    const shown = GROUPS.filter((group) => group.names.some((name) => names.includes(name)));
    const rest = names.filter((name) => !known.has(name) && (all || !(DULL.test(name) || name.startsWith("eval_"))));
    return [...shown, ...rest.map((name): Group => ({ title: metricName(name), names: [name] }))];
  }, [names, all]);
  // Apart from the smoothing, which changes while a hand moves.
  const columns = useMemo(() => {
    const wanted = names.filter((name) => groups.some((group) => group.names.includes(name)));
    return new Map(wanted.map((name) => [name, column(points, name, axis)]));
  }, [groups, points, names, axis]);
  const charts = useMemo(
    () => groups.map((group) => ({ title: group.title, lines: linesOf(group, columns, weight) })),
    [groups, columns, weight],
  );
  return (
    <div className="charts">
      {charts.map(({ title, lines }) => (
        <Chart key={title} title={title} lines={lines} log={log} axis={axis} zoom={zoom} onZoom={onZoom} />
      ))}
      {children}
    </div>
  );
}

function linesOf(group: Group, columns: ReadonlyMap<string, Column>, weight: number): Line[] {
  return group.names.flatMap((name, at): Line[] => {
    const raw = columns.get(name);
    if (!raw) return [];
    const plain: Column = group.of ? { xs: raw.xs, ys: group.of(raw.ys) } : raw;
    const rare = EVALUATION.test(name) || plain.xs.length === 1;
    const line: Line = {
      label: metricName(name),
      color: COLORS[at % COLORS.length] ?? "#888888",
      column: plain,
      dots: rare,
    };
    if (weight === 0 || rare) return [line];
    const calm: Line = { ...line, column: { xs: plain.xs, ys: smoothed(plain.ys, weight) } };
    return [{ ...line, label: `${line.label} as it is`, faint: true }, calm];
  });
}
