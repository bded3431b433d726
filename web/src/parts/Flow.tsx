/** A read-only graph that can be panned and zoomed. */
import { Background, Controls, type Edge, type EdgeTypes, type Node, type NodeTypes, ReactFlow } from "@xyflow/react";
import "@xyflow/react/dist/style.css";
import { useIsDark } from "./theme";

export function Flow({
  nodes,
  edges,
  nodeTypes,
  edgeTypes,
  height,
}: {
  nodes: Node[];
  edges: Edge[];
  nodeTypes: NodeTypes;
  edgeTypes?: EdgeTypes;
  height: number;
}) {
  const dark = useIsDark();
  return (
    <div className="dag" style={{ height }}>
      <ReactFlow
        nodes={nodes}
        edges={edges}
        nodeTypes={nodeTypes}
        edgeTypes={edgeTypes}
        colorMode={dark ? "dark" : "light"}
        fitView
        fitViewOptions={{ maxZoom: 1, padding: { top: "14px", x: "14px", bottom: "48px" } }}
        minZoom={0.2}
        nodesDraggable={false}
        nodesConnectable={false}
        preventScrolling={false}
        zoomOnScroll={false}
        proOptions={{ hideAttribution: false }}
      >
        <Background gap={18} />
        <Controls showInteractive={false} orientation="horizontal" />
      </ReactFlow>
    </div>
  );
}
