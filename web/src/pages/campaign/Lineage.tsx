/** Lineage of the chosen cycle's model as a graph; nodes link to their tasks. */
import { Link } from "@tanstack/react-router";
import { Handle, type Node, type NodeProps, Position } from "@xyflow/react";
import { useMemo } from "react";
import type { CycleView, ModelVersionView } from "../../api/schema";
import { edges, type Form, placed } from "../../lib/graph";
import { lineageOf, type Link as Made } from "../../lib/lineage";
import { Panel } from "../../parts/bits";
import { Flow } from "../../parts/Flow";
import { useIsPhone } from "../../parts/phone";
import { Empty } from "../../parts/states";

type LinkNode = Node<{ made: Made; down: boolean }, "made">;
const nodeTypes = { made: Drawn };
const WIDE: Form = { width: 142, height: 68, gaps: [34, 14] };
const PHONE: Form = { ...WIDE, gaps: [26, 14], down: true };

export function Lineage({ cycle, models }: { cycle: CycleView; models: readonly ModelVersionView[] }) {
  const down = useIsPhone();
  const links = useMemo(() => lineageOf(cycle, models), [cycle, models]);
  const { nodes, height } = useMemo(() => {
    const form = down ? PHONE : WIDE;
    const places = placed(links, form);
    return {
      nodes: places.flatMap((place): LinkNode[] => {
        const made = links.find((each) => each.id === place.id);
        return made ? [{ id: place.id, type: "made", position: place, data: { made, down } }] : [];
      }),
      height: Math.max(0, ...places.map((place) => place.y)) + form.height + 64,
    };
  }, [links, down]);
  const lines = useMemo(
    () => edges(links).map(([source, target]) => ({ id: `${source} ${target}`, source, target })),
    [links],
  );
  return (
    <Panel
      title={
        <>
          Lineage <span className="muted">of cycle {cycle.number}</span>
        </>
      }
      flush
    >
      {links.length === 0 ? (
        <Empty title="No lineage yet">Lineage appears once the first step selects its training rows.</Empty>
      ) : (
        // The graph fits its view once; another cycle, or more progress, is a new graph.
        <Flow
          key={`${cycle.number} ${links.length} ${down}`}
          nodes={nodes}
          edges={lines}
          nodeTypes={nodeTypes}
          height={height}
        />
      )}
    </Panel>
  );
}

function Drawn({ data: { made, down } }: NodeProps<LinkNode>) {
  const className = `stage made ${made.tone ?? ""}`;
  const body = (
    <>
      <strong className="cut">{made.title}</strong>
      <span className="cut" title={made.text}>
        {made.text}
      </span>
      <span className="cut muted num">{made.more}</span>
    </>
  );
  return (
    <>
      <Handle type="target" position={down ? Position.Top : Position.Left} />
      {made.task ? (
        <Link className={className} to="/tasks/$taskId" params={{ taskId: made.task }}>
          {body}
        </Link>
      ) : (
        <div className={className}>{body}</div>
      )}
      <Handle type="source" position={down ? Position.Bottom : Position.Right} />
    </>
  );
}
