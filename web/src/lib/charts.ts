/** The charts of a series of metrics: which lines share a chart, and how they are named. Pure. */
import { type Group, isMinor, lineName, metric, metricsOf, otherName } from "./metrics";
import { type Axis, type Column, column, nearest, type Place, type Point, perplexity, spacingOf } from "./series";

export interface Line {
  label: string;
  /** In the legend, where the title says the rest. */
  short?: string;
  color: string;
  column: Column;
  /** Names under which it is logged. */
  raw?: string;
  /** Few points: drawn with dots, and never smoothed. */
  dots?: boolean;
  dashed?: boolean;
  /** Distance of points in the whole series, if the column has finer ones of a zoom. */
  spacing?: number;
}

/** A point of a line that is marked, such as the best evaluation. */
export interface Highlight {
  x: number;
  y: number;
  label: string;
}

export interface ChartSpec {
  /** Lasting name, for what the user pins and hides. */
  id: string;
  title: string;
  unit?: string;
  group: Group;
  lines: Line[];
  highlight?: Highlight;
  /** Of a series with steps of its own. */
  separate?: boolean;
}

/** Colours that are distinguishable on light and dark, and with common colour blindness. */
export const COLORS = ["#3f7ff0", "#e07b1a", "#2f9e6b", "#c24f9d", "#8a6cf5", "#a58b0f", "#1a93a8", "#d85050"];

export function colorAt(index: number): string {
  return COLORS[index % COLORS.length] ?? "#888888";
}

const FEW = 12;

export interface Drawing {
  points: readonly Point[];
  names: readonly string[];
  axis: Axis;
  place: Place;
  /** Minor metrics too. */
  all: boolean;
  /** Points of the whole range, if `points` has finer ones of a zoom. */
  whole?: readonly Point[];
  /** The loss is a mean over tokens, so its perplexity means something. */
  ofTokens?: boolean;
  /** Name of the series, if it is not the training series. */
  series?: string;
}

/** The charts of one series. */
export function chartsOf(drawing: Drawing): ChartSpec[] {
  const { names, all, series } = drawing;
  const charts = new Map<string, string[]>();
  for (const name of metricsOf(names).filter((each) => all || !isMinor(each))) {
    const { chart } = metric(name);
    charts.set(chart, [...(charts.get(chart) ?? []), name]);
  }
  const described = [...charts.values()].map((members) => ({ members, ...metric(members[0] ?? "") }));
  described.sort((a, b) => a.rank - b.rank);
  return described.flatMap(({ chart, members, title, unit, group }): ChartSpec[] => {
    const lines = linesOf(members, drawing);
    const at = series ? `${series}/${chart}` : chart;
    const named = (text: string) => (series ? `${text} · ${series}` : text);
    const made: ChartSpec = {
      id: at,
      title: named(title),
      unit,
      group: series ? "other" : group,
      lines,
      separate: series !== undefined,
    };
    if (chart !== "loss" || !drawing.ofTokens) return [made];
    const perplexities = lines.map((line) => ({
      ...line,
      label: line.label.replace("loss", "perplexity"),
      column: { xs: line.column.xs, ys: perplexity(line.column.ys) },
    }));
    return [
      { ...made, highlight: bestOf(lines) },
      { ...made, id: series ? `${series}/perplexity` : "perplexity", title: named("Perplexity"), lines: perplexities },
    ];
  });
}

/** Training before evaluation, and parts in one order. */
function linesOf(members: readonly string[], { points, whole, names, axis, place }: Drawing): Line[] {
  const described = members.map((name) => ({ name, ...metric(name) }));
  described.sort((a, b) => Number(a.eval) - Number(b.eval));
  const parts = [...new Set(described.map(({ part }) => part))];
  return described.map((each): Line => {
    const found = column(points, each.name, axis, place);
    const base = whole ? column(whole, each.name, axis, place) : found;
    const evaluated = each.eval;
    const index = each.part ? parts.indexOf(each.part) : evaluated ? 1 : 0;
    return {
      label: lineName(each),
      short: each.part ? undefined : evaluated ? "Eval" : "Training",
      color: colorAt(index),
      column: found,
      raw: names.filter((name) => name === each.name || name === otherName(each.name)).join(", "),
      dots: evaluated || found.xs.length < FEW,
      dashed: evaluated && each.part !== undefined,
      spacing: spacingOf(base),
    };
  });
}

/** The lowest eval loss. */
function bestOf(lines: readonly Line[]): Highlight | undefined {
  const found = lines.find(({ label }) => label === "Eval loss");
  if (!found) return undefined;
  const { xs, ys } = found.column;
  const values = ys.filter((y) => y !== null);
  if (values.length < 2) return undefined;
  const y = Math.min(...values);
  return { x: xs[ys.indexOf(y)] ?? 0, y, label: "Best eval loss" };
}

/** What a line shows at a position: its nearest point within reach. */
export function pointAt({ xs, ys }: Column, x: number, reach: number): { x: number; y: number | null } | null {
  const at = nearest({ xs, ys }, x, reach);
  const found = xs[at];
  return found === undefined ? null : { x: found, y: ys[at] ?? null };
}

/** CSV table of a chart: the position, and one column for each line. */
export function csvOf(lines: readonly Line[], position: string): string {
  const cell = (text: string) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const rows = new Map<number, (number | null | undefined)[]>();
  lines.forEach(({ column: { xs, ys } }, at) => {
    xs.forEach((x, index) => {
      const row = rows.get(x) ?? [];
      row[at] = ys[index];
      rows.set(x, row);
    });
  });
  const head = [position, ...lines.map(({ label }) => label)].map(cell);
  const body = [...rows]
    .sort(([a], [b]) => a - b)
    .map(([x, row]) => [x, ...lines.map((_, at) => row[at] ?? "")].map(String));
  return [head, ...body].map((row) => `${row.join(",")}\n`).join("");
}

/** Charts whose title or metric has all words of a search. */
export function matching(charts: readonly ChartSpec[], search: string): ChartSpec[] {
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  return charts.filter(({ title, lines }) => {
    const text = [title, ...lines.flatMap(({ label, raw }) => [label, raw ?? ""])].join(" ").toLowerCase();
    return words.every((word) => text.includes(word));
  });
}
