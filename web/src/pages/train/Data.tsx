/** Step 2: the rows to train on. */
import { useQuery } from "@tanstack/react-query";
import { type FormEvent, useEffect, useState } from "react";
import { datasetsQuery, lookQuery } from "../../api/queries_data";
import type { ArtifactView, DatasetLook } from "../../api/schema";
import type { Data } from "../../lib/finetune";
import { bytes, number } from "../../lib/format";
import { KINDS } from "../../lib/rows";
import { Answer, Failed, Loading } from "../../parts/states";
import { Faults } from "../datasets/Faults";
import { CharacterRows, Notes } from "../datasets/Mask";
import { Upload } from "../datasets/Upload";

/** Datasets that ship with Tunefleet, with the keys that they need. */
const BUILTIN: readonly (Data & { about: string; kind: string })[] = [
  {
    reference: "builtin:extraction",
    source: "path",
    keys: { messages_field: "messages" },
    split: "test",
    rows: 2000,
    characters: 250,
    kind: "messages",
    about: "Built-in: sentences answered as JSON.",
  },
  {
    reference: "builtin:gsm8k",
    source: "path",
    keys: { prompt_column: "question", response_column: "answer", separator: "\n" },
    split: "test",
    rows: 7473,
    characters: 900,
    kind: "prompt_response",
    about: "Built-in: grade school math with worked answers.",
  },
  {
    reference: "builtin:gsm8k-preferences",
    source: "path",
    keys: { separator: "\n" },
    split: "test",
    rows: 400,
    characters: 900,
    kind: "preference",
    about: "Built-in: a correct and an incorrect solution to each problem.",
  },
];

export interface DataChoice {
  data: Data;
  kind: string | null;
}

export function DataStep({ chosen, onChoose }: { chosen: string; onChoose: (choice: DataChoice) => void }) {
  const datasets = useQuery(datasetsQuery);
  const [open, setOpen] = useState<string | null>(null);
  const items = datasets.data?.items ?? [];
  const listed = items.filter((each) => !each.task_id);
  const shown = listed.find((each) => each.id === open) ?? listed.find((each) => [each.id, each.name].includes(chosen));
  return (
    <div className="stack">
      <Upload onDone={(made) => setOpen(made.id)} />
      <ul className="option-grid" aria-label="Datasets">
        {listed.map((each) => (
          <li key={each.id}>
            <button
              type="button"
              className="option"
              aria-pressed={each.id === shown?.id}
              onClick={() => setOpen(each.id)}
            >
              <strong className="cut">{each.name}</strong>
              <span className="muted small">
                {each.owner} · {bytes(each.size_bytes)}
              </span>
            </button>
          </li>
        ))}
        {BUILTIN.map(({ about, kind, ...data }) => (
          <li key={data.reference}>
            <button
              type="button"
              className="option"
              aria-pressed={!open && chosen === data.reference}
              onClick={() => {
                setOpen(null);
                onChoose({ data, kind });
              }}
            >
              <strong>{data.reference.replace("builtin:", "")}</strong>
              <span className="muted small">{about}</span>
            </button>
          </li>
        ))}
      </ul>
      {datasets.error && <Failed error={datasets.error} />}
      {datasets.isPending && <Loading rows={2} />}
      {shown && <Looked key={shown.id} artifact={shown} items={items} onChoose={onChoose} />}
      <Hub chosen={chosen} onChoose={onChoose} />
    </div>
  );
}

/** Columns, warnings and the first rows with the trained text marked; a usable dataset is chosen at once. */
function Looked({
  artifact,
  items,
  onChoose,
}: {
  artifact: ArtifactView;
  items: readonly ArtifactView[];
  onChoose: (choice: DataChoice) => void;
}) {
  const look = useQuery(lookQuery(artifact.id));
  const found = look.data;
  // biome-ignore lint/correctness/useExhaustiveDependencies: once for each dataset that was looked at
  useEffect(() => {
    if (found?.use) onChoose({ data: dataOf(artifact, found, items), kind: found.kind ?? null });
  }, [artifact.id, found]);
  return (
    <section className="stack" aria-label={artifact.name}>
      <Answer query={look} rows={4}>
        {(seen) => (
          <>
            <div className="row tight">
              {seen.kind && <span className="tag">{KINDS[seen.kind]}</span>}
              <span className="muted small num">{number(seen.rows)} rows</span>
              {seen.columns.map((column) => (
                <code key={column} className="chip">
                  {column}
                </code>
              ))}
            </div>
            <Faults look={seen} />
            {seen.unseen && <p className="note">{seen.unseen}</p>}
            <Notes notes={seen.notes} />
            {seen.shown.length > 0 && <CharacterRows rows={seen.shown} />}
          </>
        )}
      </Answer>
    </section>
  );
}

function dataOf(artifact: ArtifactView, look: DatasetLook, items: readonly ArtifactView[]): Data {
  // A name refers to the newest upload with that name; anything else is referenced by id.
  const newest = items.find((each) => each.name === artifact.name && !each.task_id);
  return {
    reference: newest?.id === artifact.id ? artifact.name : artifact.id,
    source: "artifact",
    keys: look.use?.data ?? {},
    rows: look.rows,
    characters: look.lengths?.p95,
  };
}

function Hub({ chosen, onChoose }: { chosen: string; onChoose: (choice: DataChoice) => void }) {
  const [typed, setTyped] = useState(/^[\w.-]+\/[\w.-]+$/.test(chosen) ? chosen : "");
  const use = (event: FormEvent) => {
    event.preventDefault();
    onChoose({ data: { reference: typed.trim(), source: "hub", keys: {} }, kind: null });
  };
  return (
    <form className="row" onSubmit={use}>
      <label className="row tight grow">
        <span className="muted small nowrap">Hub dataset</span>
        <input
          className="grow"
          placeholder="For example openai/gsm8k"
          pattern="[\w.\-]+\/[\w.\-]+"
          value={typed}
          required
          onChange={(event) => setTyped(event.target.value)}
        />
      </label>
      <button type="submit">Use</button>
    </form>
  );
}
