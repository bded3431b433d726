/** What a completed training run gives: losses and answers before and after, and what can be done with the model. */
import { useMutation, useQuery } from "@tanstack/react-query";
import { Link, useNavigate } from "@tanstack/react-router";
import { api, ask } from "../../api/client";
import { artifactsQuery } from "../../api/queries";
import { resultQuery } from "../../api/queries_data";
import type { TaskAnswer } from "../../api/schema";
import { bytes, duration, number } from "../../lib/format";
import { type Change, changeOf, mergeOf, type TrainingResult } from "../../lib/result";
import { unique } from "../../lib/unique";
import { Gain, Panel } from "../../parts/bits";
import { useSession } from "../../parts/session";
import { toast } from "../../parts/toasts";
import { saveCard } from "./share";

/** Artifacts that a run delivers, best first. */
const PRODUCTS = ["model", "adapter"];

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
              shown={(value) => `${(100 * value).toFixed(1)} %`}
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
            <dd className="muted">{each.prompt.trim()}</dd>
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
  const { mayChange } = useSession();
  const artifacts = useQuery(artifactsQuery(task.id));
  const navigate = useNavigate();
  const product = PRODUCTS.map((kind) => artifacts.data?.items.find((each) => each.kind === kind)).find(Boolean);
  const merging = product?.kind === "adapter" ? mergeOf(task) : null;
  const merge = useMutation({
    mutationFn: async () => {
      if (!merging) return null;
      const { document, inputs } = merging;
      return ask(
        api.POST("/api/v1/workflows", {
          params: { header: { "idempotency-key": unique() } },
          body: { document, filename: null, inputs, strict: true },
        }),
      );
    },
    onSuccess: (made) => {
      const [only] = made?.tasks ?? [];
      if (!only) return;
      toast("Merging the adapter into its base model", "good");
      void navigate({ to: "/tasks/$taskId", params: { taskId: only.id }, search: { tab: "files" } });
    },
  });
  return (
    <>
      {product && (
        <Link to="/playground" search={{ task: task.id }} className="button primary">
          Chat
        </Link>
      )}
      {product && (
        <a className="button" href={`/api/v1/artifacts/${product.id}/archive`} download>
          Download {product.kind}, {bytes(product.size_bytes)}
        </a>
      )}
      {mayChange && merging && (
        <button type="button" disabled={merge.isPending} onClick={() => merge.mutate()}>
          Merge
        </button>
      )}
      {mayChange && (
        <Link to="/train" search={{ from: task.id }} className="button">
          Train again
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
