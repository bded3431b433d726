/** Exact tokenization, by a short task on a worker: the server has no tokenizers. */
import { useMutation, useQuery } from "@tanstack/react-query";
import { Link, useNavigate } from "@tanstack/react-router";
import { type FormEvent, useState } from "react";
import { api, ask } from "../../api/client";
import { taskQuery } from "../../api/queries";
import { resultQuery } from "../../api/queries_data";
import type { ArtifactView, DatasetUse } from "../../api/schema";
import { number } from "../../lib/format";
import { isFinal, plain } from "../../lib/words";
import { Panel } from "../../parts/bits";
import { useSession } from "../../parts/session";
import { Failed, Loading } from "../../parts/states";
import { Histogram, Legend, Notes, type TokenRow, TokensRow } from "./Mask";

const SHOWN = 5;
const FIRST_MODEL = "builtin:gsm8k-llama-2m";

interface Preview {
  model: string;
  rows: TokenRow[];
  max_seq_length: number;
  measured_rows: number;
  lengths: { shortest: number; median: number; p95: number; longest: number };
  histogram: { edges: number[]; counts: number[] };
  truncated_share: number;
  nothing_to_learn_share: number;
  notes: string[];
  trained_share: number;
}

export function Exact({ artifact, use, task }: { artifact: ArtifactView; use: DatasetUse; task?: string }) {
  const { mayChange } = useSession();
  const navigate = useNavigate();
  const [model, setModel] = useState(FIRST_MODEL);
  const [length, setLength] = useState("1024");
  const submit = useMutation({
    mutationFn: () =>
      ask(
        api.POST("/api/v1/workflows", {
          body: {
            document: previewDocument(artifact, use, model, Number(length)),
            filename: null,
            inputs: {},
            strict: false,
          },
        }),
      ),
    onSuccess: (made) =>
      void navigate({ to: "/datasets", search: { id: artifact.id, preview: made.tasks[0]?.id }, replace: true }),
  });
  const send = (event: FormEvent) => {
    event.preventDefault();
    submit.mutate();
  };
  if (use.kind === "dpo")
    return (
      <p className="muted">
        Preference training compares the chosen and the rejected answer as a whole, so there is no token mask to show.
      </p>
    );
  return (
    <div className="stack">
      {mayChange && (
        <form className="row" onSubmit={send}>
          <label className="row tight tokenizer">
            <span className="muted small">Tokenizer</span>
            <input className="grow" value={model} required onChange={(event) => setModel(event.target.value)} />
          </label>
          <label className="row tight">
            <span className="muted small">Max sequence length</span>
            <input
              className="short num"
              inputMode="numeric"
              pattern="[1-9][0-9]*"
              required
              value={length}
              onChange={(event) => setLength(event.target.value)}
            />
          </label>
          <button type="submit" disabled={submit.isPending}>
            Tokenize
          </button>
        </form>
      )}
      {task ? (
        <Outcome task={task} />
      ) : (
        <p className="muted small">
          A worker tokenizes the rows with the model's tokenizer and chat template. This takes a few seconds.
        </p>
      )}
    </div>
  );
}

function Outcome({ task: id }: { task: string }) {
  const task = useQuery(taskQuery(id));
  const done = task.data?.status === "completed";
  const result = useQuery(resultQuery(id, done));
  if (task.error) return <Failed error={task.error} />;
  const shown = (result.data?.result as { preview?: Preview } | undefined)?.preview;
  if (shown) return <Shown shown={shown} />;
  if (result.error) return <Failed error={result.error} />;
  const { status, why, error } = task.data ?? {};
  if (status && isFinal(status) && status !== "completed")
    return (
      <p className="fault" role="alert">
        {error ?? `The run is ${plain(status)}.`}{" "}
        <Link to="/tasks/$taskId" params={{ taskId: id }}>
          View run
        </Link>
      </p>
    );
  const waits = status === "queued" || status === "pending";
  return (
    <div role="status">
      <p className="muted">
        {waits ? (why ?? "Waiting for a worker …") : "Tokenizing …"}{" "}
        <Link to="/tasks/$taskId" params={{ taskId: id }}>
          View run
        </Link>
      </p>
      <Loading rows={3} />
    </div>
  );
}

function Shown({ shown }: { shown: Preview }) {
  const { lengths, histogram } = shown;
  const share = (part: number) => `${(100 * part).toFixed(part && part < 0.01 ? 1 : 0)}%`;
  return (
    <>
      <div className="row between">
        <Legend cut={shown.truncated_share > 0} />
        <span className="muted small num">
          {shown.model} · {number(shown.measured_rows)} rows sampled
        </span>
      </div>
      <ul className="rows-shown" aria-label="Rows" tabIndex={0}>
        {shown.rows.slice(0, SHOWN).map((row, at) => (
          // biome-ignore lint/suspicious/noArrayIndexKey: a row is its place
          <TokensRow key={at} row={row} place={at + 1} />
        ))}
      </ul>
      <Notes notes={shown.notes} />
      <Panel title="Row length, tokens">
        <Histogram edges={histogram.edges} counts={histogram.counts} unit="tokens" limit={shown.max_seq_length} />
        <p className="small muted num">
          {share(shown.trained_share)} trained tokens · median {number(lengths.median)}, p95 {number(lengths.p95)} ·{" "}
          {shown.truncated_share > 0
            ? `${share(shown.truncated_share)} of rows exceed ${number(shown.max_seq_length)} tokens`
            : `no row exceeds ${number(shown.max_seq_length)} tokens`}
          {shown.nothing_to_learn_share > 0 &&
            ` · ${share(shown.nothing_to_learn_share)} of rows have no trained tokens`}
        </p>
      </Panel>
    </>
  );
}

function previewDocument(artifact: ArtifactView, use: DatasetUse, model: string, max_seq_length: number): string {
  const preview = { model, rows: SHOWN, max_seq_length, ...use.data };
  const spec = { taskType: "data", sources: [{ artifact: artifact.id }], steps: [], preview };
  const metadata = { name: `preview ${artifact.name}`.slice(0, 100) };
  return JSON.stringify({ apiVersion: "tunefleet/v1", kind: "DataTask", metadata, spec });
}
