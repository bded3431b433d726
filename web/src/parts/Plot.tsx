/** Measurements by number, such as versions: dots with intervals, a line, one selected. */
import { type ReactNode, useEffect, useRef, useState } from "react";
import { number } from "../lib/format";
import "../styles/charts.css";

export interface Measured {
  at: number;
  value: number;
  low?: number | null;
  high?: number | null;
}

export interface Measurements {
  label: string;
  color: string;
  points: readonly Measured[];
}

const LEFT = 46;
const BOTTOM = 20;
const TOP = 8;
const RIGHT = 10;

export function Plot({
  title,
  about,
  rows,
  chosen,
  onChoose,
  height = 170,
}: {
  title: ReactNode;
  /** What the x values number, such as `version`. */
  about: string;
  rows: readonly Measurements[];
  chosen?: number;
  onChoose?: (at: number) => void;
  height?: number;
}) {
  const box = useRef<HTMLDivElement>(null);
  const width = useWidth(box);
  const all = rows.flatMap((row) => row.points);
  const scale = scaleOf(all, width, height);
  return (
    <figure className="chart plot">
      <header>
        <h2>{title}</h2>
        <Legend rows={rows} at={chosen} about={about} />
      </header>
      <div ref={box} style={{ height }}>
        {width > 0 && all.length > 0 && (
          <svg
            width={width}
            height={height}
            role="img"
            aria-label={`${rows.map((row) => row.label).join(", ")} by ${about}`}
          >
            <Axes scale={scale} width={width} height={height} />
            {chosen !== undefined && (
              <line className="chosen" x1={scale.x(chosen)} x2={scale.x(chosen)} y1={TOP} y2={height - BOTTOM} />
            )}
            {rows.map((row, index) => (
              <Row
                key={row.label}
                row={row}
                scale={scale}
                shift={rows.length > 1 ? (index - (rows.length - 1) / 2) * 5 : 0}
              />
            ))}
            {onChoose &&
              [...new Set(all.map((point) => point.at))].map((at) => (
                // biome-ignore lint/a11y/noStaticElementInteractions: the table below has the same as links
                <rect
                  key={at}
                  className="hit"
                  x={scale.x(at) - scale.step / 2}
                  width={scale.step}
                  y={0}
                  height={height}
                  onClick={() => onChoose(at)}
                >
                  <title>{`${about} ${at}`}</title>
                </rect>
              ))}
          </svg>
        )}
      </div>
    </figure>
  );
}

interface Scale {
  x: (at: number) => number;
  y: (value: number) => number;
  xs: number[];
  ys: number[];
  step: number;
}

function scaleOf(points: readonly Measured[], width: number, height: number): Scale {
  const ats = points.map((point) => point.at);
  const values = points.flatMap((point) => [point.value, point.low ?? point.value, point.high ?? point.value]);
  const [first, last] = [Math.min(...ats), Math.max(...ats)];
  const pad = (Math.max(...values) - Math.min(...values)) * 0.08 || Math.abs(values[0] ?? 1) * 0.1 || 1;
  const [low, high] = [Math.min(...values) - pad, Math.max(...values) + pad];
  const inner = width - LEFT - RIGHT - 16;
  const x = (at: number) => LEFT + 8 + (last === first ? inner / 2 : (inner * (at - first)) / (last - first));
  const y = (value: number) => TOP + ((height - TOP - BOTTOM) * (high - value)) / (high - low);
  const every = Math.max(1, Math.ceil((last - first + 1) / Math.max(2, Math.floor(inner / 44))));
  const xs = Array.from({ length: Math.floor((last - first) / every) + 1 }, (_, index) => first + index * every);
  const ys = roundValues(low, high);
  return { x, y, xs, ys, step: last === first ? inner : inner / (last - first) };
}

/** Round values within a range. */
function roundValues(low: number, high: number): number[] {
  const rough = (high - low) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = ([1, 2, 5].find((each) => each * power >= rough) ?? 10) * power;
  const first = Math.ceil(low / step);
  return Array.from({ length: Math.max(0, Math.floor(high / step) - first + 1) }, (_, index) => (first + index) * step);
}

function Axes({ scale, width, height }: { scale: Scale; width: number; height: number }) {
  return (
    <g className="axes">
      {scale.ys.map((value) => (
        <g key={value}>
          <line x1={LEFT} x2={width - RIGHT} y1={scale.y(value)} y2={scale.y(value)} />
          <text x={LEFT - 6} y={scale.y(value) + 4} textAnchor="end">
            {number(Number(value.toPrecision(3)))}
          </text>
        </g>
      ))}
      {scale.xs.map((at) => (
        <text key={at} x={scale.x(at)} y={height - 5} textAnchor="middle">
          {at}
        </text>
      ))}
    </g>
  );
}

function Row({ row, scale, shift }: { row: Measurements; scale: Scale; shift: number }) {
  const path = row.points
    .map(
      ({ at, value }, index) => `${index ? "L" : "M"}${(scale.x(at) + shift).toFixed(1)} ${scale.y(value).toFixed(1)}`,
    )
    .join("");
  return (
    <g style={{ color: row.color }}>
      <path className="through" d={path} />
      {row.points.map(({ at, value, low, high }) => {
        const x = scale.x(at) + shift;
        return (
          <g key={at}>
            {low != null && high != null && (
              <path
                className="interval"
                d={`M${x} ${scale.y(low)}V${scale.y(high)}M${x - 3} ${scale.y(low)}h6M${x - 3} ${scale.y(high)}h6`}
              />
            )}
            <circle cx={x} cy={scale.y(value)} r={3} />
          </g>
        );
      })}
    </g>
  );
}

function Legend({ rows, at, about }: { rows: readonly Measurements[]; at: number | undefined; about: string }) {
  const shown = at ?? rows.flatMap((row) => row.points.slice(-1)).at(-1)?.at;
  return (
    <div className="legend num">
      {shown !== undefined && <span>{`${about} ${shown}`}</span>}
      {rows.map((row) => {
        const found = row.points.find((point) => point.at === shown);
        return (
          <span key={row.label}>
            <i style={{ background: row.color }} />
            {rows.length > 1 && `${row.label} `}
            <b>{number(found?.value)}</b>
            {found?.low != null && found.high != null && ` ${interval(found.low, found.high)}`}
          </span>
        );
      })}
    </div>
  );
}

/** The bounds of an interval, such as `[1.92, 2.04]`. */
export function interval(low: number, high: number): string {
  return `[${number(low)}, ${number(high)}]`;
}

export function useWidth(box: { current: HTMLElement | null }): number {
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const watch = new ResizeObserver(() => setWidth(element.clientWidth));
    watch.observe(element);
    return () => watch.disconnect();
  }, [box]);
  return width;
}
