/** Model predictions at its evaluations, compared by step. */
import { useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import { predictionsQuery } from "../../api/queries";
import type { PredictionItem, TaskAnswer } from "../../api/schema";
import { Panel } from "../../parts/bits";
import { Answer, Empty } from "../../parts/states";

interface HeldOut {
  answers?: { prompt: string; before: string; after: string }[];
}

export function Predictions({ task }: { task: TaskAnswer }) {
  const predictions = useQuery({
    ...predictionsQuery(task.id),
    refetchInterval: task.status === "running" ? 15_000 : false,
  });
  const answers = useMemo(() => heldOut(task.result), [task.result]);
  return (
    <div className="stack">
      {answers.map((each) => (
        <Panel key={each.prompt} title={<span className="prompt">{each.prompt}</span>}>
          <div className="pair">
            <Said title="Before" text={each.before} />
            <Said title="After" text={each.after} />
          </div>
        </Panel>
      ))}
      <Answer query={predictions}>
        {(found) => {
          const groups = Map.groupBy(found.predictions as PredictionItem[], (each) => each.prompt);
          if (groups.size === 0)
            return answers.length > 0 ? null : (
              <Empty title="No predictions yet">
                Set <code>predictions</code>.
              </Empty>
            );
          return [...groups].map(([prompt, items]) => (
            <Panel key={prompt} title={<span className="prompt">{prompt}</span>}>
              <div className="pair">
                {items.slice(-4).map((each) => (
                  <Said key={`${each.step} ${each.sample_index}`} title={`Step ${each.step}`} text={each.prediction} />
                ))}
                {items[0]?.ground_truth && <Said title="Reference" text={items[0].ground_truth} />}
              </div>
            </Panel>
          ));
        }}
      </Answer>
    </div>
  );
}

function Said({ title, text }: { title: string; text: string }) {
  return (
    <div>
      <div className="muted small">{title}</div>
      <pre>{text || "(nothing)"}</pre>
    </div>
  );
}

/** Find the answers before and after training, wherever the result has them. */
function heldOut(result: unknown): NonNullable<HeldOut["answers"]> {
  if (typeof result !== "object" || result === null) return [];
  if ("held_out" in result) return (result.held_out as HeldOut | null)?.answers ?? [];
  for (const inner of Object.values(result)) {
    const found = heldOut(inner);
    if (found.length) return found;
  }
  return [];
}
