/** What can be done with a model: chat, download, merge, export, train from it, delete. Also on the page of a run. */
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate } from "@tanstack/react-router";
import { useState } from "react";
import { api, ask } from "../../api/client";
import { workersQuery } from "../../api/queries";
import { bytes } from "../../lib/format";
import {
  FORM_NAMES,
  GGUF_HINTS,
  GGUF_TYPES,
  type GgufType,
  loadingOf,
  type Model,
  mergeFault,
  mergeOf,
  type Submission,
} from "../../lib/models";
import { unique } from "../../lib/unique";
import { Confirm } from "../../parts/bits";
import { maySteer, useSession } from "../../parts/session";
import { toast } from "../../parts/toasts";
import { useServe, useStart } from "../playground/start";
import { PushToHub } from "./Push";

export function ModelActions({ model }: { model: Model }) {
  const { mayChange } = useSession();
  const { artifact, form } = model;
  const start = useStart();
  const serve = useServe();
  const loading = loadingOf(model);
  const chats = typeof loading !== "string";
  return (
    <>
      {mayChange && form !== "gguf" && (
        <button
          type="button"
          className="primary"
          disabled={!chats || start.isPending}
          title={chats ? undefined : loading}
          onClick={() => chats && start.mutate({ loading })}
        >
          Chat
        </button>
      )}
      {mayChange && chats && (
        <button
          type="button"
          disabled={serve.isPending}
          onClick={() => serve.mutate(loading, { onSuccess: () => toast("Endpoint starting: see Models, Endpoints.") })}
        >
          Serve
        </button>
      )}
      <a className="button" href={`/api/v1/artifacts/${artifact.id}/archive`} download>
        Download {FORM_NAMES[form].toLowerCase()}, {bytes(artifact.size_bytes)}
      </a>
      {mayChange && <Exports model={model} />}
      {mayChange && <PushToHub model={model} />}
      {mayChange && ["base", "full", "merged"].includes(form) && (
        <Link to="/train" search={{ model: artifact.id }} className="button">
          Fine-tune
        </Link>
      )}
      {mayChange && artifact.task_id && (form === "adapter" || form === "full") && (
        <Link to="/train" search={{ from: artifact.task_id }} className="button">
          Train again
        </Link>
      )}
    </>
  );
}

/** Merge and GGUF export: tasks of their own. */
function Exports({ model }: { model: Model }) {
  const workers = useQuery(workersQuery);
  const navigate = useNavigate();
  const [choosing, setChoosing] = useState(false);
  const [type, setType] = useState<GgufType | undefined>();
  const submit = useMutation({
    mutationFn: ({ document, inputs }: Submission) =>
      ask(
        api.POST("/api/v1/workflows", {
          params: { header: { "idempotency-key": unique() } },
          body: { document, filename: null, inputs, strict: true },
        }),
      ),
    onSuccess: (made) => {
      const [only] = made.tasks;
      if (!only) return;
      toast(`${only.name} started`, "good");
      void navigate({ to: "/tasks/$taskId", params: { taskId: only.id }, search: { tab: "files" } });
    },
  });
  if (!workers.data) return null;
  const merge = mergeOf(model);
  const fault = (wanted?: GgufType) => mergeFault(workers.data.items, wanted);
  const usable = GGUF_TYPES.filter((each) => fault(each) === null);
  const exported = type && mergeOf(model, type);
  return (
    <>
      {merge && (
        <button
          type="button"
          disabled={submit.isPending || fault() !== null}
          title={fault() ?? "Merge the adapter into its base model"}
          onClick={() => submit.mutate(merge)}
        >
          Merge
        </button>
      )}
      {mergeOf(model, "f16") && (
        <button
          type="button"
          disabled={submit.isPending || usable.length === 0}
          title={usable.length === 0 ? (fault("q8_0") ?? undefined) : "Export for llama.cpp, Ollama and LM Studio"}
          onClick={() => {
            setType(usable[0]);
            setChoosing(true);
          }}
        >
          GGUF
        </button>
      )}
      {choosing && (
        <Confirm
          title="Export to GGUF"
          action="Export"
          onDo={() => exported && submit.mutate(exported)}
          onClose={() => setChoosing(false)}
        >
          <fieldset className="choices">
            <legend>Weight type</legend>
            <div className="stack tight">
              {GGUF_TYPES.map((each) => (
                <label key={each} className="row tight">
                  <input
                    type="radio"
                    name="gguf"
                    checked={each === type}
                    disabled={fault(each) !== null}
                    onChange={() => setType(each)}
                  />
                  <span>{each}</span>
                  <span className="muted small">{fault(each) ?? GGUF_HINTS[each]}</span>
                </label>
              ))}
            </div>
          </fieldset>
        </Confirm>
      )}
    </>
  );
}

export function DeleteModel({ model }: { model: Model }) {
  const session = useSession();
  const client = useQueryClient();
  const navigate = useNavigate();
  const [asking, setAsking] = useState(false);
  const { artifact, name } = model;
  const remove = useMutation({
    mutationFn: () =>
      ask(api.DELETE("/api/v1/artifacts/{artifact_id}", { params: { path: { artifact_id: artifact.id } } })),
    onSuccess: async () => {
      toast(`${name} deleted`, "good");
      await client.invalidateQueries({ queryKey: ["models"] });
      void navigate({ to: "/models", search: {}, replace: true });
    },
  });
  if (!maySteer(session, artifact.owner)) return null;
  return (
    <>
      <button type="button" className="danger" disabled={remove.isPending} onClick={() => setAsking(true)}>
        Delete
      </button>
      {asking && (
        <Confirm
          title={`Delete ${name}?`}
          action="Delete"
          danger
          onDo={() => remove.mutate()}
          onClose={() => setAsking(false)}
        >
          Its files ({bytes(artifact.size_bytes)}) are deleted. Runs and models made from it are not affected.
        </Confirm>
      )}
    </>
  );
}
