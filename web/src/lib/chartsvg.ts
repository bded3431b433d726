/** A chart as an SVG image, for files: what is drawn on the canvas, with title and legend. Pure. */
import type { Highlight } from "./charts";
import type { Marker, MarkerKind } from "./markers";
import type { Column } from "./series";

export interface Tick {
  at: number;
  label: string;
}

export interface Axis {
  label: string;
  range: readonly [number, number];
  ticks: readonly Tick[];
  log?: boolean;
}

export interface DrawnLine {
  label: string;
  color: string;
  column: Column;
  faint?: boolean;
  dots?: boolean;
  dashed?: boolean;
}

export interface Picture {
  title: string;
  x: Axis;
  y: Axis;
  lines: readonly DrawnLine[];
  markers: readonly Marker[];
  highlight?: Highlight;
  colors: Colors;
}

/** Computed colours: a file has no style sheet. */
export type Colors = Readonly<Record<"background" | "text" | "muted" | "grid" | MarkerKind, string>>;

export const SIZE = { width: 960, height: 480 };
const LEFT = 76;
const RIGHT = 24;
const TOP = 70;
const BOTTOM = 56;
const FONT = "system-ui, sans-serif";

export function svgOf({ title, x, y, lines, markers, highlight, colors }: Picture): string {
  const { width, height } = SIZE;
  const right = width - RIGHT;
  const bottom = height - BOTTOM;
  const px = (value: number) => LEFT + ((right - LEFT) * (value - x.range[0])) / (x.range[1] - x.range[0]);
  const scaled = (value: number) => (y.log ? Math.log10(value) : value);
  const [low, high] = [scaled(y.range[0]), scaled(y.range[1])];
  const py = (value: number) => bottom - ((bottom - TOP) * (scaled(value) - low)) / (high - low);
  const text = (at: string, content: string, fill: string, more = "") =>
    `<text ${at} fill="${fill}" font-size="12" ${more}>${escaped(content)}</text>`;
  const grid = [
    ...y.ticks.map(
      ({ at, label }) =>
        `<path d="M${LEFT} ${fixed(py(at))}H${right}" stroke="${colors.grid}"/>${text(
          `x="${LEFT - 8}" y="${fixed(py(at) + 4)}"`,
          label,
          colors.muted,
          'text-anchor="end"',
        )}`,
    ),
    ...x.ticks.map(
      ({ at, label }) =>
        `<path d="M${fixed(px(at))} ${TOP}V${bottom}" stroke="${colors.grid}"/>${text(
          `x="${fixed(px(at))}" y="${bottom + 18}"`,
          label,
          colors.muted,
          'text-anchor="middle"',
        )}`,
    ),
  ];
  const shown = markers.filter((each) => each.x >= x.range[0] && each.x <= x.range[1]);
  const marks = shown.map(({ kind, x: at, label }) => {
    const place = fixed(px(at));
    const name = `<title>${escaped(label)}</title>`;
    if (kind === "checkpoint")
      return `<path d="M${place} ${bottom - 9}l5 9h-10z" fill="${colors.checkpoint}">${name}</path>`;
    return `<path d="M${place} ${TOP}V${bottom}" stroke="${colors[kind]}" stroke-dasharray="4 3">${name}</path>`;
  });
  const drawn = lines.flatMap((line) => {
    const { column, color, faint, dots, dashed } = line;
    const style = `fill="none" stroke="${color}" stroke-width="${faint ? 1 : 1.8}"${faint ? ' opacity="0.33"' : ""}${dashed ? ' stroke-dasharray="6 4"' : ""}`;
    const path = `<path d="${pathOf(column, px, py, x.range, y.log === true)}" ${style}/>`;
    if (!dots) return [path];
    const circles = column.xs.flatMap((at, index) => {
      const value = column.ys[index];
      if (value == null || at < x.range[0] || at > x.range[1] || (y.log && value <= 0)) return [];
      return `<circle cx="${fixed(px(at))}" cy="${fixed(py(value))}" r="3" fill="${color}"/>`;
    });
    return [path, ...circles];
  });
  const ring = highlight
    ? `<circle cx="${fixed(px(highlight.x))}" cy="${fixed(py(highlight.y))}" r="7" fill="none" stroke="${colors.text}" stroke-width="1.5"><title>${escaped(highlight.label)}</title></circle>`
    : "";
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" font-family="${FONT}">`,
    `<rect width="${width}" height="${height}" fill="${colors.background}"/>`,
    `<text x="${LEFT}" y="28" fill="${colors.text}" font-size="16" font-weight="600">${escaped(title)}</text>`,
    legend(lines, colors),
    ...grid,
    text(`x="${(LEFT + right) / 2}" y="${height - 14}"`, x.label, colors.muted, 'text-anchor="middle"'),
    text(`transform="translate(18 ${(TOP + bottom) / 2}) rotate(-90)"`, y.label, colors.muted, 'text-anchor="middle"'),
    `<clipPath id="plot"><rect x="${LEFT}" y="${TOP}" width="${right - LEFT}" height="${bottom - TOP}"/></clipPath>`,
    `<g clip-path="url(#plot)">`,
    ...marks,
    ...drawn,
    ring,
    "</g></svg>",
  ].join("\n");
}

function legend(lines: readonly DrawnLine[], colors: Colors): string {
  let left = LEFT;
  return lines
    .filter(({ faint }) => !faint)
    .map(({ label, color }) => {
      const at = left;
      // A rough width of the text: a file cannot measure it.
      left += 34 + label.length * 6.6;
      return `<rect x="${at}" y="43" width="14" height="4" rx="2" fill="${color}"/><text x="${at + 20}" y="50" fill="${colors.muted}" font-size="12">${escaped(label)}</text>`;
    })
    .join("");
}

/** A line, broken at gaps; outside the shown range, only the neighbours. */
function pathOf(
  { xs, ys }: Column,
  px: (x: number) => number,
  py: (y: number) => number,
  [from, to]: readonly [number, number],
  log: boolean,
): string {
  let open = false;
  const parts: string[] = [];
  xs.forEach((x, at) => {
    if ((xs[at + 1] ?? x) < from || (xs[at - 1] ?? x) > to) return;
    const y = ys[at];
    if (y == null || (log && y <= 0)) {
      open = false;
      return;
    }
    parts.push(`${open ? "L" : "M"}${fixed(px(x))} ${fixed(py(y))}`);
    open = true;
  });
  return parts.join("");
}

function fixed(value: number): string {
  return String(Math.round(value * 10) / 10);
}

function escaped(text: string): string {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll('"', "&quot;");
}
