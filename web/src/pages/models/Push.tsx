/** Publishes a model to the Hugging Face Hub, on a worker: a button and its dialog. */
import { useMutation, useQuery } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { type FormEvent, useEffect, useRef, useState } from "react";
import { api, ask } from "../../api/client";
import { workersQuery } from "../../api/queries";
import { isRepository, type Model, pushFault, pushOf } from "../../lib/models";
import { unique } from "../../lib/unique";
import { toast } from "../../parts/toasts";
import "../../styles/edit.css";

export function PushToHub({ model }: { model: Model }) {
  const workers = useQuery(workersQuery);
  const [open, setOpen] = useState(false);
  if (!workers.data || model.form === "checkpoint") return null;
  const fault = pushFault(workers.data.items);
  return (
    <>
      <button
        type="button"
        disabled={fault !== null}
        title={fault ?? "Publish to the Hugging Face Hub"}
        onClick={() => setOpen(true)}
      >
        Push to hub
      </button>
      {open && <PushDialog model={model} onClose={() => setOpen(false)} />}
    </>
  );
}

function PushDialog({ model, onClose }: { model: Model; onClose: () => void }) {
  const navigate = useNavigate();
  const dialog = useRef<HTMLDialogElement>(null);
  const [repository, setRepository] = useState("");
  const [isPrivate, setPrivate] = useState(true);
  const [revision, setRevision] = useState("");
  const [message, setMessage] = useState("");
  useEffect(() => dialog.current?.showModal(), []);
  const valid = isRepository(repository.trim());
  const submit = useMutation({
    mutationFn: () => {
      const { document, inputs } = pushOf(model, {
        repository: repository.trim(),
        private: isPrivate,
        revision: revision.trim(),
        message: message.trim(),
      });
      return ask(
        api.POST("/api/v1/workflows", {
          params: { header: { "idempotency-key": unique() } },
          body: { document, filename: null, inputs, strict: true },
        }),
      );
    },
    onSuccess: (made) => {
      const [only] = made.tasks;
      if (!only) return;
      toast("Push started", "good");
      onClose();
      void navigate({ to: "/tasks/$taskId", params: { taskId: only.id }, search: {} });
    },
  });
  const send = (event: FormEvent) => {
    event.preventDefault();
    if (valid && !submit.isPending) submit.mutate();
  };
  return (
    <dialog ref={dialog} onClose={onClose} aria-labelledby="push-title">
      <form className="stack" onSubmit={send}>
        <h2 id="push-title">Push to hub</h2>
        <label className="field">
          Repository
          <input
            required
            value={repository}
            maxLength={193}
            placeholder="org/name"
            spellCheck={false}
            autoCapitalize="off"
            aria-invalid={repository !== "" && !valid}
            aria-describedby="push-repository"
            onChange={(event) => setRepository(event.target.value)}
          />
          <span id="push-repository" className="muted small">
            ORG/NAME; created if missing, and must be empty
          </span>
        </label>
        <label className="row tight">
          <input type="checkbox" checked={isPrivate} onChange={(event) => setPrivate(event.target.checked)} />
          Private
        </label>
        <label className="field">
          Branch (optional)
          <input
            value={revision}
            maxLength={255}
            placeholder="main"
            spellCheck={false}
            autoCapitalize="off"
            onChange={(event) => setRevision(event.target.value)}
          />
        </label>
        <label className="field">
          Commit message (optional)
          <input value={message} maxLength={200} onChange={(event) => setMessage(event.target.value)} />
        </label>
        <div className="row end">
          <button type="button" onClick={onClose}>
            Cancel
          </button>
          <button type="submit" className="primary" disabled={!valid || submit.isPending}>
            Push
          </button>
        </div>
      </form>
    </dialog>
  );
}
