/** Upload of a model's folder from this computer. */
import { useQueryClient } from "@tanstack/react-query";
import { useRef, useState } from "react";
import type { ArtifactView } from "../../api/schema";
import { bytes, percent } from "../../lib/format";
import { Bar } from "../../parts/bits";
import { toast, toastError } from "../../parts/toasts";
import "../../styles/datasets.css";
import { type UploadProgress, uploadModel } from "../datasets/upload";

export function ModelUpload({ onDone }: { onDone: (made: ArtifactView) => void }) {
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
