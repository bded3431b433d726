/** Upload: choose or drop a file, check it, show progress. */
import { useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { type DragEvent, useEffect, useRef, useState } from "react";
import { ApiError, type ProblemBody } from "../../api/client";
import type { ArtifactView, DatasetLook } from "../../api/schema";
import { bytes, percent } from "../../lib/format";
import { Bar } from "../../parts/bits";
import { toast, toastError } from "../../parts/toasts";
import { Faults } from "./Faults";
import { type UploadProgress, upload } from "./upload";

const BEGINNING_BYTES = 1 << 20;
const ACCEPTED = ".jsonl,.ndjson,.json,.csv,.tsv,.parquet";

interface Chosen {
  file: File;
  look?: DatasetLook;
  error?: string;
}

/** `onDone`: what follows an upload; by default, the dataset page. */
export function Upload({ onDone }: { onDone?: (made: ArtifactView) => void }) {
  const [chosen, setChosen] = useState<Chosen | null>(null);
  const [progress, setProgress] = useState<UploadProgress | null>(null);
  const [over, setOver] = useState(false);
  const stop = useRef<AbortController | null>(null);
  const here = useRef(false);
  useEffect(() => {
    here.current = true;
    return () => {
      here.current = false;
    };
  }, []);
  const input = useRef<HTMLInputElement>(null);
  const client = useQueryClient();
  const navigate = useNavigate();

  const take = async (file: File | undefined) => {
    if (!file || progress) return;
    setChosen({ file });
    try {
      const look = await lookAtBeginning(file);
      setChosen({ file, look });
      if (look.fault_count === 0) await send(file);
    } catch (error) {
      setChosen({ file, error: error instanceof Error ? error.message : String(error) });
    }
  };
  const send = async (file: File) => {
    const control = new AbortController();
    stop.current = control;
    setProgress({ phase: "reading", done: 0, total: file.size });
    try {
      const made = await upload(file, file.name, setProgress, control.signal);
      toast(`${made.name} uploaded`, "good");
      setChosen(null);
      await client.invalidateQueries({ queryKey: ["datasets"] });
      // Do not navigate if the user has left this page.
      if (here.current && onDone) onDone(made);
      else if (here.current) void navigate({ to: "/datasets", search: { id: made.id } });
    } catch (error) {
      if (control.signal.aborted) toast("Upload stopped. Choose the same file to continue");
      else toastError(error);
    } finally {
      setProgress(null);
    }
  };
  const drop = (event: DragEvent) => {
    event.preventDefault();
    setOver(false);
    void take(event.dataTransfer.files[0]);
  };
  return (
    <section
      className={over ? "drop over" : "drop"}
      aria-label="Upload"
      onDragOver={(event) => {
        event.preventDefault();
        setOver(true);
      }}
      onDragLeave={() => setOver(false)}
      onDrop={drop}
    >
      {progress && chosen ? (
        <div className="progress grow">
          <div className="row between tight">
            <span className="cut">
              {progress.phase === "reading" ? "Reading" : "Uploading"} <strong>{chosen.file.name}</strong>
            </span>
            <span className="num muted">
              {bytes(progress.done)} of {bytes(progress.total)}
            </span>
          </div>
          <Bar value={percent(progress.done, progress.total)} label="Upload" />
        </div>
      ) : (
        <div className="grow">
          <strong>Drop a data file here</strong>{" "}
          <span className="muted">
            JSONL, JSON, CSV or Parquet with chats, Alpaca, ShareGPT, preferences or plain text
          </span>
        </div>
      )}
      {progress ? (
        <button type="button" onClick={() => stop.current?.abort()}>
          Stop
        </button>
      ) : (
        <button type="button" className="primary" onClick={() => input.current?.click()}>
          Choose file
        </button>
      )}
      <input
        ref={input}
        type="file"
        className="hidden"
        aria-label="Data file"
        tabIndex={-1}
        accept={ACCEPTED}
        onChange={(event) => {
          void take(event.target.files?.[0]);
          event.target.value = "";
        }}
      />
      {chosen && !progress && (chosen.error || (chosen.look?.fault_count ?? 0) > 0) && (
        <Refused chosen={chosen} onAnyway={() => void send(chosen.file)} onClose={() => setChosen(null)} />
      )}
    </section>
  );
}

function Refused({ chosen, onAnyway, onClose }: { chosen: Chosen; onAnyway: () => void; onClose: () => void }) {
  const { look, error, file } = chosen;
  return (
    <div className="refused">
      {error ? <p className="fault">{error}</p> : look && <Faults look={look} />}
      <div className="row end">
        {look && look.rows > 0 && (
          <button type="button" onClick={onAnyway}>
            Upload {file.name} anyway
          </button>
        )}
        <button type="button" onClick={onClose}>
          Cancel
        </button>
      </div>
    </div>
  );
}

/** Check the start of a file before it is uploaded. */
async function lookAtBeginning(file: File): Promise<DatasetLook> {
  const query = new URLSearchParams({ name: file.name, size_bytes: String(file.size), rows: "0" });
  const answer = await fetch(`/api/v1/datasets/look?${query}`, {
    method: "POST",
    headers: { "Content-Type": "application/octet-stream" },
    body: file.slice(0, BEGINNING_BYTES),
  });
  if (!answer.ok) throw new ApiError((await answer.json()) as ProblemBody);
  return (await answer.json()) as DatasetLook;
}
