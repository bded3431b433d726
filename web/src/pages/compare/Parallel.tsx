/** Parallel coordinates: one line for each run, from its hyperparameters to a metric. */

import { type PointerEvent, useMemo, useRef, useState } from "react";
import { type Field, fieldText, type Measured, type ParallelAxis, parallelAxis, ranks } from "../../lib/compare";
import { number } from "../../lib/format";
import { metricName } from "../../lib/metrics";
import { lowerIsBetter } from "../../lib/runcolumns";
import { Panel } from "../../parts/bits";
import { useWidth } from "../../parts/Plot";

/** What of a run is drawn; a trial of a sweep has it, too. */
interface Drawn {
  task: { id: string };
  label: string;
}

const HEIGHT = 260;
const TOP = 34;
const BOTTOM = 14;
const SIDE = 70;
/** More axes have no room for their labels. */
const MOST_AXES = 8;
const NARROWEST_PX = 92;
const LEAST_BRUSH = 0.02;
/** A drag may begin this far beyond the end of an axis. */
const REACH = 10;
/** Fields that differ between any two runs and explain nothing. */
const IRRELEVANT = /^(metadata|output|deliver|notify|resources|priority|limits|retry|name)\b/;

type Range = readonly [number, number];

export function Parallel({
  runs,
  fields,
  measured,
  goal,
  onGoal,
  lower,
}: {
  runs: readonly Drawn[];
  fields: readonly Field[];
  measured: readonly Measured[];
  goal?: string;
  /** Without it, the metric cannot be changed. */
  onGoal?: (name: string) => void;
  /** Whether lower values are better; default: by the name of the metric. */
  lower?: boolean;
}) {
  const target = measured.find(({ name }) => name === goal) ?? measured[0];
  const axes = useMemo(() => {
    const settings = fields
      .filter((field) => field.differs && !IRRELEVANT.test(field.path))
      .flatMap((field) => parallelAxis(field.path, field.name, field.values, fieldText) ?? [])
      .slice(0, MOST_AXES - 1);
    const last = target && parallelAxis(target.name, metricName(target.name), target.values, number);
    return last && settings.length > 0 ? [...settings, last] : null;
  }, [fields, target]);
  // One hyperparameter and two runs are read from the tables.
  if (!axes || !target || runs.length < 3) return null;
  return (
    <Panel
      title="Hyperparameters and result"
      actions={
        onGoal && (
          <label className="row tight">
            <span className="small muted">Metric</span>
            <select value={target.name} onChange={(event) => onGoal(event.target.value)}>
              {measured.map(({ name }) => (
                <option key={name} value={name}>
                  {metricName(name)}
                </option>
              ))}
            </select>
          </label>
        )
      }
    >
      <Drawing runs={runs} axes={axes} lower={lower ?? lowerIsBetter(target.name) ?? true} />
    </Panel>
  );
}

function Drawing({ runs, axes, lower }: { runs: readonly Drawn[]; axes: readonly ParallelAxis[]; lower: boolean }) {
  const box = useRef<HTMLDivElement>(null);
  const width = Math.max(useWidth(box), axes.length * NARROWEST_PX);
  const [ranges, setRanges] = useState<Record<string, Range>>({});
  const [over, setOver] = useState<number | null>(null);
  const x = (axis: number) => SIDE + (axis * (width - 2 * SIDE)) / (axes.length - 1);
  const y = (position: number) => HEIGHT - BOTTOM - position * (HEIGHT - TOP - BOTTOM);
  const goal = axes.at(-1);
  const scores = useMemo(() => (goal ? ranks(goal, lower) : []), [goal, lower]);
  const kept = runs.map((_, at) =>
    axes.every(({ key, positions }) => {
      const range = ranges[key];
      const position = positions[at];
      return !range || (position != null && position >= range[0] && position <= range[1]);
    }),
  );
  // The best ones, and the one under the pointer, are drawn last.
  const depth = (at: number) => (at === over ? 3 : kept[at] ? 1 : 0) + (scores[at] ?? 0);
  const order = runs.map((_, at) => at).sort((a, b) => depth(a) - depth(b));
  const filtered = Object.keys(ranges).length > 0;
  const shown = over === null ? undefined : runs[over];
  return (
    <>
      <div ref={box} className="sideways parallel" role="region" aria-label="Parallel coordinates" tabIndex={0}>
        <svg width={width} height={HEIGHT} role="img" aria-label={summaryOf(runs, axes)}>
          {order.map((at) => {
            const path = pathOf(axes, at, x, y);
            return (
              <g key={runs[at]?.task.id} onPointerEnter={() => setOver(at)} onPointerLeave={() => setOver(null)}>
                <path d={path} className="wide" />
                <path
                  d={path}
                  className={kept[at] ? (at === over ? "line over" : "line") : "line out"}
                  style={{ stroke: shade(scores[at] ?? 0) }}
                />
              </g>
            );
          })}
          {axes.map((axis, at) => (
            <AxisOf
              key={axis.key}
              axis={axis}
              x={x(at)}
              y={y}
              range={ranges[axis.key]}
              onRange={(range) =>
                setRanges(({ [axis.key]: _, ...rest }) => (range ? { ...rest, [axis.key]: range } : rest))
              }
            />
          ))}
        </svg>
      </div>
      <div className="row between small muted">
        <span>
          {shown
            ? `${shown.label}: ${axes.map(({ name, texts }) => `${name} ${texts[over ?? 0]}`).join(" · ")}`
            : "Drag along an axis to filter. Darker lines are better."}
        </span>
        {filtered && (
          <button type="button" className="quiet" onClick={() => setRanges({})}>
            {kept.filter(Boolean).length} of {runs.length} runs · Clear filter
          </button>
        )}
      </div>
    </>
  );
}

/** From pale (worst) to the accent colour (best): the best few stand out. */
function shade(share: number): string {
  return `color-mix(in oklab, var(--accent) ${Math.round(share ** 2 * 100)}%, var(--line))`;
}

function pathOf(
  axes: readonly ParallelAxis[],
  at: number,
  x: (axis: number) => number,
  y: (position: number) => number,
): string {
  let open = false;
  return axes
    .map(({ positions }, axis) => {
      const position = positions[at];
      if (position == null) {
        open = false;
        return "";
      }
      const command = `${open ? "L" : "M"}${x(axis).toFixed(1)} ${y(position).toFixed(1)}`;
      open = true;
      return command;
    })
    .join("");
}

function summaryOf(runs: readonly Drawn[], axes: readonly ParallelAxis[]): string {
  const names = axes.map(({ name }) => name);
  return `${runs.length} runs by ${names.slice(0, -1).join(", ")} and ${names.at(-1)}`;
}

/** An axis with its ticks; dragging along it keeps the runs of that range. */
function AxisOf({
  axis,
  x,
  y,
  range,
  onRange,
}: {
  axis: ParallelAxis;
  x: number;
  y: (position: number) => number;
  range?: Range;
  onRange: (range: Range | undefined) => void;
}) {
  const from = useRef<number | null>(null);
  const positionOf = (event: PointerEvent<SVGRectElement>) => {
    const { top, height } = event.currentTarget.getBoundingClientRect();
    return Math.min(1, Math.max(0, 1 - (event.clientY - top - REACH) / (height - 2 * REACH)));
  };
  const end = () => {
    from.current = null;
    if (range && range[1] - range[0] < LEAST_BRUSH) onRange(undefined);
  };
  const [low, high] = range ?? [0, 0];
  return (
    <g transform={`translate(${x} 0)`}>
      <text y={14} className="name" textAnchor="middle">
        {axis.name.length > 18 ? `${axis.name.slice(0, 17)}…` : axis.name}
        <title>{axis.name}</title>
      </text>
      <line y1={y(1)} y2={y(0)} className="axis" />
      {axis.ticks.map(({ at, text }) => (
        <g key={text} transform={`translate(0 ${y(at)})`}>
          <line x1={-3} x2={3} className="axis" />
          <text x={7} dy="0.32em" className="tick">
            {text.length > 14 ? `${text.slice(0, 13)}…` : text}
            <title>{text}</title>
          </text>
        </g>
      ))}
      {range && <rect x={-7} width={14} y={y(high)} height={y(low) - y(high)} className="brush" />}
      <rect
        x={-12}
        width={24}
        y={y(1) - REACH}
        height={y(0) - y(1) + 2 * REACH}
        className="handle"
        onPointerDown={(event) => {
          event.currentTarget.setPointerCapture(event.pointerId);
          from.current = positionOf(event);
          onRange([from.current, from.current]);
        }}
        onPointerMove={(event) => {
          if (from.current === null) return;
          const at = positionOf(event);
          onRange([Math.min(from.current, at), Math.max(from.current, at)]);
        }}
        onPointerUp={end}
        onPointerCancel={end}
      />
    </g>
  );
}
