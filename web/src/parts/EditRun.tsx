/** Dialog for the name, tags and notes of a run. */
import { useQueryClient } from "@tanstack/react-query";
import { type FormEvent, useEffect, useRef, useState } from "react";
import { api, ask } from "../api/client";
import type { TaskView } from "../api/schema";
import { TagInput } from "./TagInput";
import { toastError } from "./toasts";
import "../styles/edit.css";

export function EditRun({ task, onClose }: { task: TaskView; onClose: () => void }) {
  const client = useQueryClient();
  const dialog = useRef<HTMLDialogElement>(null);
  const [name, setName] = useState(task.name);
  const [tags, setTags] = useState<string[]>(task.tags ?? []);
  const [notes, setNotes] = useState(task.notes ?? "");
  const [busy, setBusy] = useState(false);
  useEffect(() => dialog.current?.showModal(), []);
  const original = task.original_name ?? task.name;
  const save = async (event: FormEvent) => {
    event.preventDefault();
    setBusy(true);
    try {
      const body = { name: name.trim() || null, tags, notes: notes.trim() || null };
      await ask(api.PATCH("/api/v1/tasks/{task_id}", { params: { path: { task_id: task.id } }, body }));
    } catch (error) {
      toastError(error);
      setBusy(false);
      return;
    }
    for (const what of ["tasks", "task-counts", "task"]) void client.invalidateQueries({ queryKey: [what] });
    onClose();
  };
  return (
    <dialog ref={dialog} onClose={onClose} aria-labelledby="edit-run">
      <form className="stack" onSubmit={(event) => void save(event)}>
        <h2 id="edit-run">Edit run</h2>
        <label className="field">
          Name
          <input
            value={name}
            maxLength={128}
            placeholder={original}
            onChange={(event) => setName(event.target.value)}
          />
          {name.trim() !== original && <span className="muted small">In the workflow file: {original}</span>}
        </label>
        <div className="field">
          <span aria-hidden="true">Tags</span>
          <TagInput label="Tags" tags={tags} onChange={setTags} />
        </div>
        <label className="field">
          Notes
          <textarea rows={4} value={notes} maxLength={10_000} onChange={(event) => setNotes(event.target.value)} />
        </label>
        <div className="row end">
          <button type="button" onClick={onClose}>
            Cancel
          </button>
          <button type="submit" className="primary" disabled={busy}>
            Save
          </button>
        </div>
      </form>
    </dialog>
  );
}
