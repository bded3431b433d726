/** All series of a training, with one zoom, one axis and one smoothing for all of them. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { type ReactNode, useMemo, useState } from "react";
import { metricsQuery, rangeQuery } from "../../api/queries";
import type { TaskAnswer } from "../../api/schema";
import { type Axis, type Column, column, type Point, perplexity, smoothed } from "../../lib/series";
import { isFinal, metricName } from "../../lib/words";
import { Chart, COLORS, type Line, type Zoom } from "../../parts/Chart";
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
const EVALUATION = /^(eval_|held_out_)/;

export function Charts({ task }: { task: TaskAnswer }) {
  const client = useQueryClient();
  const metrics = useQuery(metricsQuery(client, task.id, task.attempts, task.status));
  const [axis, setAxis] = useState<Axis>("step");
  const [log, setLog] = useState(false);
  const [weight, setWeight] = useState(0);
  const [all, setAll] = useState(false);
  const [zoom, setZoom] = useState<Zoom>(null);
  const finer = zoom !== null && axis === "step" && metrics.data?.thinned === true;
  const range = useQuery(rangeQuery(task.id, zoom?.[0] ?? 0, zoom?.[1] ?? 0, finer));
  return (
    <div className="stack">
      <div className="row small">
        <div className="row tight" role="group" aria-label="Axis">
          {(["step", "time"] as const).map((each) => (
            <button
              key={each}
              type="button"
              aria-pressed={axis === each}
              onClick={() => {
                setAxis(each);
                setZoom(null);
              }}
            >
              {each === "step" ? "Steps" : "Time"}
            </button>
          ))}
        </div>
        <button type="button" aria-pressed={log} onClick={() => setLog(!log)}>
          Log scale
        </button>
        <label className="row tight">
          Smoothing
          <input
            type="range"
            min="0"
            max="0.98"
            step="0.02"
            value={weight}
            onChange={(event) => setWeight(Number(event.target.value))}
          />
          <span className="num muted" style={{ width: "2.4em" }}>
            {weight.toFixed(2)}
          </span>
        </label>
        <button type="button" aria-pressed={all} onClick={() => setAll(!all)}>
          All metrics
        </button>
        <button type="button" onClick={() => setZoom(null)} disabled={!zoom}>
          Whole range
        </button>
        <span className="muted hide-phone">Drag over a chart to zoom all of them.</span>
      </div>
      <Answer query={metrics}>
        {(found) =>
          found.points.length === 0 ? (
            <Empty title="No metrics yet">
              {isFinal(task.status) ? "This task has logged none." : "They appear here as the training logs them."}
            </Empty>
          ) : (
            <Drawn
              {...{ axis, log, weight, all, zoom }}
              points={zoomedIn(found.points, range.data?.points, zoom)}
              names={found.names}
              onZoom={setZoom}
            >
              {axis === "time" && task.worker_id && found.points[0] && (
                <Machine task={task} start={found.points[0].at} zoom={zoom} onZoom={setZoom} />
              )}
            </Drawn>
          )
        }
      </Answer>
    </div>
  );
}

/** Put the finer points of a zoom in place of the thinned ones. */
function zoomedIn(points: Point[], finer: readonly Point[] | undefined, zoom: Zoom): Point[] {
  const [first, last] = [finer?.[0], finer?.at(-1)];
  if (!finer || !first || !last || !zoom) return points;
  return [
    ...points.filter((point) => point.step < first.step),
    ...finer,
    ...points.filter((point) => point.step > last.step),
  ];
}

interface DrawnProps {
  points: Point[];
  names: string[];
  axis: Axis;
  log: boolean;
  weight: number;
  all: boolean;
  zoom: Zoom;
  onZoom: (zoom: Zoom) => void;
  children?: ReactNode;
}

function Drawn({ points, names, axis, log, weight, all, zoom, onZoom, children }: DrawnProps) {
  const groups = useMemo(() => {
    const known = new Set(GROUPS.flatMap((group) => group.names));
    const shown = GROUPS.filter((group) => group.names.some((name) => names.includes(name)));
    const rest = names.filter((name) => !known.has(name) && (all || !(DULL.test(name) || name.startsWith("eval_"))));
    return [...shown, ...rest.map((name): Group => ({ title: metricName(name), names: [name] }))];
  }, [names, all]);
  const charts = useMemo(
    () => groups.map((group) => ({ title: group.title, lines: linesOf(group, points, names, axis, weight) })),
    [groups, points, names, axis, weight],
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

function linesOf(group: Group, points: Point[], names: string[], axis: Axis, weight: number): Line[] {
  return group.names
    .filter((name) => names.includes(name))
    .flatMap((name): Line[] => {
      const raw = column(points, name, axis);
      const plain: Column = group.of ? { xs: raw.xs, ys: group.of(raw.ys) } : raw;
      const rare = EVALUATION.test(name) || plain.xs.length === 1;
      const color = COLORS[group.names.indexOf(name) % COLORS.length] ?? "#888888";
      const line: Line = { label: metricName(name), color, column: plain, dots: rare };
      if (weight === 0 || rare) return [line];
      const calm: Line = { ...line, column: { xs: plain.xs, ys: smoothed(plain.ys, weight) } };
      return [{ ...line, label: `${line.label} as it is`, faint: true }, calm];
    });
}
