/** Where the tasks of a workflow stand in its drawing. Pure. */
import { graphlib, layout } from "@dagrejs/dagre";

export interface Placed {
  id: string;
  x: number;
  y: number;
}

export const STAGE_WIDTH = 210;
export const STAGE_HEIGHT = 76;

export function placed(tasks: readonly { id: string; depends_on: readonly string[] }[], gap = 56): Placed[] {
  const graph = new graphlib.Graph();
  graph.setGraph({ rankdir: "LR", nodesep: 18, ranksep: gap });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const { id } of tasks) graph.setNode(id, { width: STAGE_WIDTH, height: STAGE_HEIGHT });
  for (const [from, to] of edges(tasks)) graph.setEdge(from, to);
  layout(graph);
  return tasks.map(({ id }) => {
    const { x, y } = graph.node(id);
    return { id, x: x - STAGE_WIDTH / 2, y: y - STAGE_HEIGHT / 2 };
  });
}

/** Pairs of a task and one that needs it, among these tasks. */
export function edges(tasks: readonly { id: string; depends_on: readonly string[] }[]): [string, string][] {
  const known = new Set(tasks.map(({ id }) => id));
  return tasks.flatMap(({ id, depends_on }) =>
    depends_on.filter((before) => known.has(before)).map((before): [string, string] => [before, id]),
  );
}
