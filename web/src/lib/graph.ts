/** Layout of a workflow's tasks. Pure. */
import { graphlib, layout } from "@dagrejs/dagre";

export interface Placed {
  id: string;
  x: number;
  y: number;
}

export interface Form {
  width: number;
  height: number;
  /** Gap between dependent tasks, and between parallel ones. */
  gaps: readonly [number, number];
  down?: boolean;
}

const STAGES: Form = { width: 210, height: 76, gaps: [56, 18] };

export function placed(tasks: readonly { id: string; depends_on: readonly string[] }[], form = STAGES): Placed[] {
  const { width, height, gaps, down } = form;
  const graph = new graphlib.Graph();
  graph.setGraph({ rankdir: down ? "TB" : "LR", ranksep: gaps[0], nodesep: gaps[1] });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const { id } of tasks) graph.setNode(id, { width, height });
  for (const [from, to] of edges(tasks)) graph.setEdge(from, to);
  layout(graph);
  return tasks.map(({ id }) => {
    const { x, y } = graph.node(id);
    return { id, x: x - width / 2, y: y - height / 2 };
  });
}

/** Pairs of a task and its dependent, among these tasks. */
export function edges(tasks: readonly { id: string; depends_on: readonly string[] }[]): [string, string][] {
  const known = new Set(tasks.map(({ id }) => id));
  return tasks.flatMap(({ id, depends_on }) =>
    depends_on.filter((before) => known.has(before)).map((before): [string, string] => [before, id]),
  );
}
