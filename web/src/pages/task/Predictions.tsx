/** Model predictions at its evaluations, compared by step: one panel for each prompt. */
import { useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import { predictionsQuery } from "../../api/queries";
import type { PredictionItem, TaskAnswer } from "../../api/schema";
import { partsOf } from "../../lib/prompt";
import type { TrainingResult } from "../../lib/result";
import { Panel } from "../../parts/bits";
import { Answer, Empty } from "../../parts/states";

/** Steps that are shown after the one before training. */
const LAST_STEPS = 3;

interface Compared {
  prompt: string;
  answers: { title: string; text: string }[];
}

export function Predictions({ task }: { task: TaskAnswer }) {
  const predictions = useQuery({
    ...predictionsQuery(task.id),
    refetchInterval: task.status === "running" ? 15_000 : false,
  });
  const result = task.result as { result?: TrainingResult } | null;
  return (
    <Answer query={predictions}>
      {(found) => (
        <Prompts items={found.predictions as PredictionItem[]} answers={result?.result?.held_out?.answers ?? []} />
      )}
    </Answer>
  );
}

function Prompts({
  items,
  answers,
}: {
  items: readonly PredictionItem[];
  answers: NonNullable<NonNullable<TrainingResult["held_out"]>["answers"]>;
}) {
  const prompts = useMemo(() => compared(items, answers), [items, answers]);
  if (prompts.length === 0)
    return (
      <Empty title="No predictions yet">
        They are written at each evaluation if the run has <code>predictions</code>.
      </Empty>
    );
  return (
    <div className="stack">
      {prompts.map(({ prompt, answers: shown }) => (
        <Panel key={prompt} title={<Prompt text={prompt} />}>
          <div className="pair">
            {shown.map(({ title, text }) => (
              <div key={title}>
                <div className="muted small">{title}</div>
                <pre>{text.trim() || "(empty)"}</pre>
              </div>
            ))}
          </div>
        </Panel>
      ))}
    </div>
  );
}

function Prompt({ text }: { text: string }) {
  return (
    <span className="prompt">
      {partsOf(text).map(({ role, text: said }, at) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: the parts of a prompt stay where they are
        <span key={at}>
          {role && role !== "user" && <span className="muted">{role}: </span>}
          {said}{" "}
        </span>
      ))}
    </span>
  );
}

/** The answers by prompt. Those of the result are the first and the last ones that were logged. */
function compared(
  items: readonly PredictionItem[],
  answers: NonNullable<NonNullable<TrainingResult["held_out"]>["answers"]>,
): Compared[] {
  const logged = [...Map.groupBy(items, (each) => each.prompt)].map(([prompt, all]): Compared => {
    // A resumed run logs a step again.
    const steps = [...new Map(all.map((each) => [each.step, each])).values()].toSorted(
      (one, other) => (one.step ?? 0) - (other.step ?? 0),
    );
    const shown = steps.filter((each, at) => !each.step || at >= steps.length - LAST_STEPS);
    const named = shown.map(({ step, prediction }) => ({
      title: step ? `Step ${step}` : "Before training",
      text: prediction ?? "",
    }));
    const reference = all[0]?.ground_truth;
    return { prompt, answers: reference ? [...named, { title: "Reference", text: reference }] : named };
  });
  const known = new Set(logged.map((each) => each.prompt));
  const others = answers.filter((each) => !known.has(each.prompt));
  return [
    ...others.map(({ prompt, before, after, reference }) => ({
      prompt,
      answers: [
        { title: "Before training", text: before },
        { title: "After training", text: after },
        ...(reference ? [{ title: "Reference", text: reference }] : []),
      ],
    })),
    ...logged,
  ];
}
