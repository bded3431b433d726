/** Metric of each version on held-out rows, with its interval, next to the base and the previously promoted version. */
import { useNavigate } from "@tanstack/react-router";
import { useState } from "react";
import type { ModelVersionView } from "../../api/schema";
import { evaluationTask, type Interval, measuredOf } from "../../lib/campaign";
import { type Measured, Plot } from "../../parts/Plot";

export function Evaluation({
  versions,
  chosen,
}: {
  versions: readonly ModelVersionView[];
  chosen: number | undefined;
}) {
  const navigate = useNavigate({ from: "/campaigns/$name" });
  const oldest = [...versions].reverse();
  const found = oldest.map((each) => ({ at: each.version, ...measuredOf(each.evaluation, evaluationTask(each)) }));
  const points = (of: "chosen" | "base" | "promoted"): Measured[] =>
    found.flatMap((each) => {
      const measured: Interval | null = each[of];
      return measured ? [{ at: each.at, ...measured }] : [];
    });
  const [withBase, setWithBase] = useState(true);
  if (points("chosen").length === 0) return null;
  const metric = String(oldest[0]?.evaluation.metric ?? "loss");
  return (
    <Plot
      title={
        <span className="row tight">
          Eval {metric} per version
          <label className="row tight small muted plain">
            <input type="checkbox" checked={withBase} onChange={(event) => setWithBase(event.target.checked)} />
            include base
          </label>
        </span>
      }
      about="version"
      rows={[
        { label: "base", color: "var(--line-0)", points: withBase ? points("base") : [] },
        { label: "previously promoted", color: "var(--line-2)", points: points("promoted") },
        { label: "this version", color: "var(--line-1)", points: points("chosen") },
      ].filter((row) => row.points.length > 0)}
      chosen={versions.find((each) => each.cycle === chosen)?.version}
      onChoose={(version) => {
        const cycle = versions.find((each) => each.version === version)?.cycle;
        void navigate({ search: { cycle }, replace: true, resetScroll: false });
      }}
      height={190}
    />
  );
}
