/** Step 1: the base model. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { type FormEvent, useRef, useState } from "react";
import { modelsQuery, searchQuery } from "../../api/queries_models";
import type { ArtifactView, HubModel } from "../../api/schema";
import type { ModelChoice } from "../../lib/finetune";
import { bytes, count, localTime, percent } from "../../lib/format";
import { Bar } from "../../parts/bits";
import { Failed, Loading } from "../../parts/states";
import { toast, toastError } from "../../parts/toasts";
import { type UploadProgress, uploadModel } from "../datasets/upload";

export const BUILTIN: ModelChoice = { identifier: "builtin:gsm8k-llama-2m", weights: 2_100_000 };

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
      <ul className="options" aria-label="Models on this server">
        <Option
          title="gsm8k-llama-2m"
          about="Built in, 2 M weights: trains in a minute on a CPU. For a first try."
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

/** Upload of a model's folder from this computer. */
function ModelUpload({ onDone }: { onDone: (made: ArtifactView) => void }) {
  const input = useRef<HTMLInputElement>(null);
  const stop = useRef<AbortController | null>(null);
  const client = useQueryClient();
  const [progress, setProgress] = useState<UploadProgress | null>(null);
  const send = async (files: readonly File[]) => {
    if (files.length === 0) return;
    const control = new AbortController();
    stop.current = control;
    setProgress({ phase: "reading", done: 0, total: 1 });
    try {
      const made = await uploadModel(files, setProgress, control.signal);
      toast(`${made.name} uploaded`, "good");
      await client.invalidateQueries({ queryKey: ["models"] });
      onDone(made);
    } catch (error) {
      if (control.signal.aborted) toast("Upload stopped. Choose the same folder to continue");
      else toastError(error);
    } finally {
      setProgress(null);
    }
  };
  return (
    <section className="drop" aria-label="Upload a model">
      {progress ? (
        <div className="progress grow">
          <span className="muted num">
            {progress.phase === "reading" ? "Reading" : "Uploading"} {bytes(progress.done)} of {bytes(progress.total)}
          </span>
          <Bar value={percent(progress.done, progress.total)} label="Upload" />
        </div>
      ) : (
        <span className="grow">
          <strong>A model on this computer</strong>{" "}
          <span className="muted">the folder with config.json, tokenizer and safetensors files</span>
        </span>
      )}
      <button type="button" onClick={() => (progress ? stop.current?.abort() : input.current?.click())}>
        {progress ? "Stop" : "Choose folder"}
      </button>
      <input
        ref={(element) => {
          input.current = element;
          // Not an attribute that React knows; without it, the browser offers files only.
          element?.setAttribute("webkitdirectory", "");
        }}
        type="file"
        className="hidden"
        aria-label="Model folder"
        tabIndex={-1}
        multiple
        onChange={(event) => {
          void send([...(event.target.files ?? [])]);
          event.target.value = "";
        }}
      />
    </section>
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
        <ul className="options" aria-label="Models on the Hub">
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
    model.weights ? `${count(model.weights)} weights` : "",
    model.downloads ? `${count(model.downloads)} downloads` : "",
    model.gated ? "gated: accept its license on the Hub, and set HF_TOKEN on the worker" : "",
  ]
    .filter(Boolean)
    .join(" · ");
}
