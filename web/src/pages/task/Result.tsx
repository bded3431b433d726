/** What a completed training run gives: losses and answers before and after, and what can be done with the model. */
import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { resultQuery } from "../../api/queries_data";
import { runModelsQuery } from "../../api/queries_models";
import type { TaskAnswer } from "../../api/schema";
import { bytes, duration, number } from "../../lib/format";
import { questionOf } from "../../lib/prompt";
import { type Change, changeOf, type TrainingResult } from "../../lib/result";
import { Gain, Panel } from "../../parts/bits";
import { ModelActions } from "../models/Actions";
import { saveCard } from "./share";

export function Result({ task }: { task: TaskAnswer }) {
  const reply = useQuery(resultQuery(task.id, true));
  const result = reply.data?.result as TrainingResult | undefined;
  if (!result?.losses && !result?.held_out) return null;
  const { held_out, used, tokens } = result;
  const loss = changeOf(held_out?.loss_before, held_out?.loss_after);
  const right = changeOf(held_out?.exact_match?.before, held_out?.exact_match?.after);
  return (
    <Panel title="Result" actions={<Actions task={task} result={result} />}>
      <div className="stack">
        <div className="outcome">
          {loss ? (
            <Big label="Eval loss" change={loss} shown={number} good={loss.after < loss.before} />
          ) : (
            <div>
              <span className="muted small">Training loss</span>
              <strong className="num">
                {number(result.losses?.train_first)} → {number(result.losses?.train_last)}
              </strong>
            </div>
          )}
          {right && (
            <Big
              label="Exact match"
              change={right}
              shown={(value) => `${(100 * value).toFixed(1)}%`}
              good={right.after > right.before}
            />
          )}
          <Small label="Training time" value={duration(result.training_time_seconds)} />
          <Small label="Steps" value={number(result.steps)} />
          <Small label="Tokens" value={number(tokens?.seen)} />
          <Small label="Trained weights" value={number(used?.parameters_trained)} />
          {result.memory?.peak_bytes != null && <Small label="Peak memory" value={bytes(result.memory.peak_bytes)} />}
          {result.energy_kwh != null && <Small label="Energy" value={`${number(result.energy_kwh)} kWh`} />}
        </div>
        {!!held_out?.answers?.length && <Answers answers={held_out.answers} />}
      </div>
    </Panel>
  );
}

function Big({
  label,
  change,
  shown,
  good,
}: {
  label: string;
  change: Change;
  shown: (value: number) => string;
  good: boolean;
}) {
  return (
    <div>
      <span className="muted small">{label}</span>
      <strong className="num big">
        {shown(change.before)} → {shown(change.after)}
      </strong>
      <Gain change={change} good={good} />
    </div>
  );
}

function Small({ label, value }: { label: string; value: string }) {
  return (
    <div>
      <span className="muted small">{label}</span>
      <strong className="num">{value}</strong>
    </div>
  );
}

function Answers({ answers }: { answers: NonNullable<NonNullable<TrainingResult["held_out"]>["answers"]> }) {
  return (
    <details open>
      <summary>Answers before and after</summary>
      <div className="answers">
        {answers.map((each, at) => (
          // biome-ignore lint/suspicious/noArrayIndexKey: the answers of a result stay where they are
          <dl key={at}>
            <dt>Prompt</dt>
            <dd className="muted">{questionOf(each.prompt)}</dd>
            <dt>Before</dt>
            <dd>{each.before.trim() || <span className="muted">(empty)</span>}</dd>
            <dt>After</dt>
            <dd className="after">{each.after.trim() || <span className="muted">(empty)</span>}</dd>
            {each.reference && (
              <>
                <dt>Expected</dt>
                <dd className="muted">{each.reference.trim()}</dd>
              </>
            )}
          </dl>
        ))}
      </div>
    </details>
  );
}

function Actions({ task, result }: { task: TaskAnswer; result: TrainingResult }) {
  const models = useQuery(runModelsQuery(task.id)).data ?? [];
  // A full model, if there is one: its adapter is in it.
  const model = models.find((each) => each.form === "full") ?? models[0];
  return (
    <>
      {model && <ModelActions model={model} />}
      {model && (
        <Link to="/models" search={{ id: model.artifact.id }} className="button">
          Lineage
        </Link>
      )}
      <Link to="/compare" search={{ tasks: task.id }} className="button">
        Compare
      </Link>
      <button type="button" onClick={() => saveCard(task, result)}>
        Image
      </button>
    </>
  );
}
