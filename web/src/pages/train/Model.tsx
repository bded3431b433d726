/** Step 1: the base model. */
import { useQuery } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { modelsQuery, searchQuery } from "../../api/queries_models";
import type { HubModel } from "../../api/schema";
import type { ModelChoice } from "../../lib/finetune";
import { bytes, count, localTime } from "../../lib/format";
import { BUILTIN as BUILTIN_MODEL } from "../../lib/models";
import { Failed, Loading } from "../../parts/states";
import { ModelUpload } from "../models/Upload";

export const BUILTIN: ModelChoice = { identifier: BUILTIN_MODEL, weights: 2_100_000 };

export function ModelStep({
  chosen,
  digest,
  onChoose,
}: {
  chosen: string;
  /** Digest of the chosen model: several may have one name. */
  digest?: string;
  onChoose: (model: ModelChoice) => void;
}) {
  const models = useQuery(modelsQuery);
  return (
    <div className="stack">
      <ul className="option-grid" aria-label="Models on this server">
        <Option
          title="gsm8k-llama-2m"
          about="Built-in, 2M parameters: trains in a minute on a CPU. Good for a first try."
          chosen={chosen === BUILTIN.identifier}
          onChoose={() => onChoose(BUILTIN)}
        />
        {(models.data ?? []).map((each) => (
          <Option
            key={each.digest}
            title={each.name}
            about={`${each.task_id ? `Made by ${each.task_id}` : "Uploaded"}, ${localTime(each.created_at)} · ${bytes(each.size_bytes)}`}
            chosen={chosen === `./${each.name}` && (!digest || digest === each.digest)}
            onChoose={() => onChoose({ identifier: `./${each.name}`, digest: each.digest })}
          />
        ))}
      </ul>
      {models.error && <Failed error={models.error} />}
      <ModelUpload onDone={(made) => onChoose({ identifier: `./${made.name}`, digest: made.digest })} />
      <Hub chosen={chosen} onChoose={onChoose} />
    </div>
  );
}

function Option({
  title,
  about,
  chosen,
  onChoose,
}: {
  title: string;
  about: string;
  chosen: boolean;
  onChoose: () => void;
}) {
  return (
    <li>
      <button type="button" className="option" aria-pressed={chosen} onClick={onChoose}>
        <strong>{title}</strong>
        <span className="muted small">{about}</span>
      </button>
    </li>
  );
}

/** Search of the Hugging Face Hub, through the server; a full id needs no search. */
function Hub({ chosen, onChoose }: { chosen: string; onChoose: (model: ModelChoice) => void }) {
  const onHub = !chosen.startsWith("builtin:") && !chosen.startsWith("./") ? chosen : "";
  const [typed, setTyped] = useState(onHub);
  const [asked, setAsked] = useState("");
  const found = useQuery(searchQuery(asked));
  const search = (event: FormEvent) => {
    event.preventDefault();
    setAsked(typed.trim());
  };
  const complete = /^[\w.-]+\/[\w.-]+$/.test(typed.trim());
  return (
    <section className="stack" aria-label="Hugging Face Hub">
      <form className="row" onSubmit={search}>
        <label className="row tight grow">
          <span className="muted small nowrap">Hugging Face Hub</span>
          <input
            className="grow"
            placeholder="Search, or an id such as Qwen/Qwen3-0.6B"
            value={typed}
            onChange={(event) => setTyped(event.target.value)}
          />
        </label>
        <button type="submit" disabled={!typed.trim()}>
          Search
        </button>
        {complete && (
          <button type="button" className="primary" onClick={() => onChoose({ identifier: typed.trim() })}>
            Use {typed.trim().split("/")[1]}
          </button>
        )}
      </form>
      {asked && found.isFetching && <Loading rows={2} />}
      {asked && found.error && <Failed error={found.error} />}
      {found.data && asked && (
        <ul className="option-grid" aria-label="Models on the Hub">
          {found.data.models.length === 0 && <li className="muted">No model found for “{asked}”.</li>}
          {found.data.models.map((each) => (
            <Option
              key={each.id}
              title={each.id}
              about={aboutOf(each)}
              chosen={chosen === each.id}
              onChoose={() => onChoose({ identifier: each.id, weights: each.weights ?? undefined })}
            />
          ))}
        </ul>
      )}
    </section>
  );
}

function aboutOf(model: HubModel): string {
  return [
    model.weights ? `${count(model.weights)} parameters` : "",
    model.downloads ? `${count(model.downloads)} downloads` : "",
    model.gated ? "gated: accept its license on the Hub, and set HF_TOKEN on the worker" : "",
  ]
    .filter(Boolean)
    .join(" · ");
}
