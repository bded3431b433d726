/** What a merge task has written, and whether it agrees with the model that it was made from. */
import { useQuery } from "@tanstack/react-query";
import { resultQuery } from "../../api/queries_data";
import type { TaskAnswer } from "../../api/schema";
import { bytes, number } from "../../lib/format";
import type { GgufDifference, MergeResult } from "../../lib/result";
import { Panel } from "../../parts/bits";

export function Merged({ task }: { task: TaskAnswer }) {
  const result = useQuery(resultQuery(task.id, true)).data?.result as MergeResult | undefined;
  // A merge of adapters has nothing to be compared with.
  if (result?.into !== "base") return null;
  const { verification, gguf, modelfile } = result;
  return (
    <Panel title="Result">
      <p>
        {verification?.tolerance
          ? `Merged model verified: relative error ${number(verification.relative_error)}, tolerance ${number(verification.tolerance)}`
          : "Merged model not verified"}
      </p>
      {gguf && (
        <p>
          <strong>{gguf.name}</strong>
          <span className="muted small"> · {bytes(gguf.size_bytes)}</span>
          <br />
          {gguf.check?.summary ?? "Answers of the GGUF file not checked"}
          {!!gguf.fallback_tensors && ` ${number(gguf.fallback_tensors)} tensors have more bits than ${gguf.type}.`}
        </p>
      )}
      {!!gguf?.check?.differences?.length && <Differences rows={gguf.check.differences} />}
      {modelfile && (
        <details>
          <summary>Modelfile for Ollama</summary>
          <pre>{modelfile}</pre>
        </details>
      )}
    </Panel>
  );
}

function Differences({ rows }: { rows: GgufDifference[] }) {
  return (
    <details>
      <summary>Different answers</summary>
      <div className="answers">
        {rows.map((each) => (
          <dl key={each.prompt}>
            <dt>Prompt</dt>
            <dd className="muted">{each.prompt}</dd>
            <dt>Model</dt>
            <dd>{each.model}</dd>
            <dt>GGUF</dt>
            <dd>{each.gguf}</dd>
            <dt>Probability</dt>
            <dd className="muted">
              {(100 * each.model_probability).toFixed(1)}% and {(100 * each.gguf_probability).toFixed(1)}% where they
              part
            </dd>
          </dl>
        ))}
      </div>
    </details>
  );
}
