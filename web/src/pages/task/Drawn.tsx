/** The charts of one series: main metrics first, then the others. */
import { useMemo } from "react";
import type { ChartView, Zoom } from "../../lib/chartview";
import { type Column, column, type Point, perplexity, smoothed } from "../../lib/series";
import { metricName } from "../../lib/words";
import { Chart, COLORS, type Line } from "../../parts/Chart";

interface Group {
  title: string;
  names: readonly string[];
  of?: (ys: readonly (number | null)[]) => (number | null)[];
}

const GROUPS: readonly Group[] = [
  { title: "Loss", names: ["loss", "eval_loss", "held_out_loss"] },
  { title: "Perplexity", names: ["loss", "eval_loss", "held_out_loss"], of: perplexity },
  { title: "Exact match", names: ["held_out_exact_match"] },
  { title: "Learning rate", names: ["learning_rate"] },
  { title: "Gradient norm", names: ["grad_norm"] },
  { title: "Tokens per second", names: ["train_tokens_per_second"] },
  { title: "Token accuracy", names: ["mean_token_accuracy", "eval_mean_token_accuracy"] },
];
/** Counters and evaluation times: not charted unless all metrics are requested. */
const DULL = /(^|_)(runtime|samples_per_second|steps_per_second|preparation_time)$|^num_|^total_flos$/;
const EVALUATION = /^(eval_|held_out_)/;

interface DrawnProps {
  points: Point[];
  names: string[];
  view: ChartView;
  all: boolean;
  onZoom: (zoom: Zoom) => void;
  /** Name of the series, if it is not the training series. */
  of?: string;
}

export function Drawn({ points, names, view, all, onZoom, of }: DrawnProps) {
  const { axis, log, weight, zoom } = view;
  const groups = useMemo(() => {
    const known = new Set(GROUPS.flatMap((group) => group.names));
    const shown = GROUPS.filter((group) => group.names.some((name) => names.includes(name)));
    const rest = names.filter((name) => !known.has(name) && (all || !(DULL.test(name) || name.startsWith("eval_"))));
    return [...shown, ...rest.map((name): Group => ({ title: metricName(name), names: [name] }))];
  }, [names, all]);
  // Separate from smoothing, which changes while a slider is dragged.
  const columns = useMemo(() => {
    const wanted = names.filter((name) => groups.some((group) => group.names.includes(name)));
    return new Map(wanted.map((name) => [name, column(points, name, axis)]));
  }, [groups, points, names, axis]);
  const charts = useMemo(
    () => groups.map((group) => ({ title: group.title, lines: linesOf(group, columns, weight) })),
    [groups, columns, weight],
  );
  return charts.map(({ title, lines }) => (
    <Chart
      key={title}
      title={of ? `${title} · ${of}` : title}
      lines={lines}
      log={log}
      axis={axis}
      zoom={zoom}
      onZoom={onZoom}
    />
  ));
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
    return [{ ...line, label: `${line.label} (raw)`, faint: true }, calm];
  });
}
