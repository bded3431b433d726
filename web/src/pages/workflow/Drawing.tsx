/** The tasks of a workflow as a graph: nodes show their status, edges show what is passed. */
import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import {
  BaseEdge,
  type Edge,
  EdgeLabelRenderer,
  type EdgeProps,
  getBezierPath,
  Handle,
  type Node,
  type NodeProps,
  Position,
} from "@xyflow/react";
import { useMemo } from "react";
import "../../styles/workflow.css";
import { edgesQuery } from "../../api/queries_server";
import type { EdgeView, TaskView } from "../../api/schema";
import { bytes, duration, ranSeconds } from "../../lib/format";
import { edges, type Form, placed } from "../../lib/graph";
import { isFinal } from "../../lib/words";
import { Progress, Status } from "../../parts/bits";
import { useNow } from "../../parts/clock";
import { Flow } from "../../parts/Flow";
import { useIsPhone } from "../../parts/phone";

type StageNode = Node<{ task: TaskView; down: boolean }, "stage">;
type PassingEdge = Edge<{ passed: EdgeView | undefined }, "passing">;
const NARROW: Form = { width: 210, height: 76, gaps: [56, 18] };
const PHONE: Form = { ...NARROW, gaps: [110, 18], down: true };
/** The gap between columns fits the longest label of an edge, within limits; longer ones wrap. */
const LABEL_GAPS = [130, 280] as const;
const CHARACTER_PX = 6.4;
const AROUND_LABEL_PX = 40;
/** Maximum height; a larger graph is scaled down. */
const MOST_HEIGHT = 560;
const nodeTypes = { stage: Stage };
const edgeTypes = { passing: Passing };

export function Drawing({ id, tasks }: { id: string; tasks: readonly TaskView[] }) {
  const passed = useQuery(edgesQuery(id)).data;
  const down = useIsPhone();
  const longest = Math.max(0, ...(passed ?? []).map(charactersOf));
  const told = longest > 0;
  const shape = tasks.map((task) => `${task.id}<${task.depends_on.join()}`).join(";");
  // biome-ignore lint/correctness/useExhaustiveDependencies: the places depend on the shape only
  const places = useMemo(() => placed(tasks, formOf(longest, down)), [shape, longest, down]);
  const height = Math.min(MOST_HEIGHT, Math.max(...places.map((place) => place.y)) + 160);
  const nodes = useMemo(
    () =>
      places.flatMap((place): StageNode[] => {
        const task = tasks.find((each) => each.id === place.id);
        return task ? [{ id: place.id, type: "stage", position: place, data: { task, down } }] : [];
      }),
    [places, tasks, down],
  );
  const lines = useMemo(
    () =>
      edges(tasks).map(
        ([source, target]): PassingEdge => ({
          id: `${source} ${target}`,
          type: "passing",
          source,
          target,
          animated: tasks.find((task) => task.id === target)?.status === "running",
          data: { passed: passed?.find((each) => each.source === source && each.target === target) },
        }),
      ),
    [tasks, passed],
  );
  return (
    <Flow
      key={`${told} ${down}`}
      nodes={nodes}
      edges={lines}
      nodeTypes={nodeTypes}
      edgeTypes={edgeTypes}
      height={height}
    />
  );
}

/** Length of the longest line of an edge's label. */
function charactersOf({ artifacts = [], values = [] }: EdgeView): number {
  const lines = artifacts.length ? artifacts.flatMap((each) => [each.name, sizeOf(each)]) : values.slice(0, 1);
  return Math.max(0, ...lines.map((line) => line.length));
}

function formOf(characters: number, down: boolean): Form {
  if (down) return PHONE;
  if (characters === 0) return NARROW;
  const [least, most] = LABEL_GAPS;
  const gap = Math.min(most, Math.max(least, characters * CHARACTER_PX + AROUND_LABEL_PX));
  return { ...NARROW, gaps: [gap, 18] };
}

function sizeOf({ kind, size_bytes }: { kind: string; size_bytes: number }): string {
  return `${kind} · ${bytes(size_bytes)}`;
}

function Stage({ data: { task, down } }: NodeProps<StageNode>) {
  return (
    <>
      <Handle type="target" position={down ? Position.Top : Position.Left} />
      <Link className="stage" to="/tasks/$taskId" params={{ taskId: task.id }}>
        <span className="row between tight">
          <strong className="cut">{task.name}</strong>
          <Status status={task.status} />
        </span>
        {task.status === "running" && task.progress ? (
          <Progress progress={task.progress} compact />
        ) : (
          <span className="muted row between tight">
            <span>{task.kind}</span>
            <span className="num">
              {isFinal(task.status)
                ? duration(ranSeconds(task, 0))
                : task.status === "running" && <Elapsed task={task} />}
            </span>
          </span>
        )}
      </Link>
      <Handle type="source" position={down ? Position.Bottom : Position.Right} />
    </>
  );
}

function Elapsed({ task }: { task: TaskView }) {
  return <>{duration(ranSeconds(task, useNow()))}</>;
}

function Passing({ data, ...edge }: EdgeProps<PassingEdge>) {
  const [path, x, y] = getBezierPath(edge);
  return (
    <>
      <BaseEdge path={path} />
      {data?.passed && (
        <EdgeLabelRenderer>
          <div className="passed nodrag nopan" style={{ transform: `translate(-50%, -50%) translate(${x}px, ${y}px)` }}>
            <Passed edge={data.passed} />
          </div>
        </EdgeLabelRenderer>
      )}
    </>
  );
}

/** Label of an edge: an artifact links to the files of the task that created it. */
function Passed({ edge: { source, artifacts = [], values = [] } }: { edge: EdgeView }) {
  return (
    <>
      {artifacts.map((artifact) => (
        <Link
          key={artifact.id}
          to="/tasks/$taskId"
          params={{ taskId: source }}
          search={{ tab: "files" }}
          hash={artifact.id}
          title={`${artifact.kind}, ${artifact.file_count} files, ${artifact.digest}`}
        >
          {artifact.name}
          <span className="muted num">{sizeOf(artifact)}</span>
        </Link>
      ))}
      {artifacts.length === 0 && values.length > 0 && (
        <span className="muted" title={values.join("\n")}>
          {values[0]}
          {values.length > 1 && ` +${values.length - 1}`}
        </span>
      )}
    </>
  );
}
