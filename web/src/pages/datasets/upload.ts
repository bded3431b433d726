/**
 * Uploads files: digest first, then the missing chunks.
 *
 * A broken connection costs one chunk; choosing the same file again continues the upload, even after the page was closed.
 * Content that the server already has is not sent.
 */
import { ApiError, api, ask, type ProblemBody } from "../../api/client";
import type { ArtifactView } from "../../api/schema";
import { type Entry, manifestDigest } from "../../lib/manifest";
import type { HashReport } from "./hash.worker";

export interface UploadProgress {
  phase: "reading" | "uploading";
  done: number;
  total: number;
}

const PIECE_BYTES = 4 << 20;
const FRUITLESS_TRIES = 8;
const LONGEST_PAUSE_MS = 5000;

export async function upload(
  file: File,
  name: string,
  on: (progress: UploadProgress) => void,
  signal: AbortSignal,
): Promise<ArtifactView> {
  const digest = await digestOf(file, on, signal);
  const entry = { path: file.name, digest, size_bytes: file.size };
  await send(file, entry, on, signal);
  const body = {
    name,
    kind: "dataset",
    files: [entry],
    digest: manifestDigest([entry]),
    metadata: { single_file: true },
  };
  return ask(api.POST("/api/v1/artifacts", { body, signal }));
}

/** Upload the folder of a Transformers model; progress counts the bytes of all files. */
export async function uploadModel(
  files: readonly File[],
  on: (progress: UploadProgress) => void,
  signal: AbortSignal,
): Promise<ArtifactView> {
  const [first] = files;
  const name = first?.webkitRelativePath.split("/")[0] ?? "";
  const placed = files
    .map((file) => ({ file, path: file.webkitRelativePath.split("/").slice(1).join("/") }))
    // `.git`, `.DS_Store` and the like are no part of a model.
    .filter(({ path }) => !path.split("/").some((part) => part.startsWith(".")));
  if (!placed.some(({ path }) => path === "config.json"))
    throw new Error(`${name || "The folder"} has no config.json: choose the folder of a Transformers model.`);
  const total = placed.reduce((sum, { file }) => sum + file.size, 0);
  const entries: Entry[] = [];
  let before = 0;
  for (const { file, path } of placed) {
    const shift = ({ phase, done }: UploadProgress) => on({ phase, done: before + done, total });
    const entry = { path, digest: await digestOf(file, shift, signal), size_bytes: file.size };
    await send(file, entry, shift, signal);
    entries.push(entry);
    before += file.size;
  }
  const body = { name, kind: "model", files: entries, digest: manifestDigest(entries), metadata: {} };
  return ask(api.POST("/api/v1/artifacts", { body, signal }));
}

function digestOf(file: File, on: (progress: UploadProgress) => void, signal: AbortSignal): Promise<string> {
  const worker = new Worker(new URL("./hash.worker.ts", import.meta.url), { type: "module" });
  return new Promise<string>((resolve, reject) => {
    signal.addEventListener("abort", () => reject(signal.reason), { once: true });
    worker.onerror = () => reject(new Error("The browser cannot read the file."));
    worker.onmessage = ({ data }: MessageEvent<HashReport>) => {
      if ("digest" in data) resolve(data.digest);
      else if ("error" in data) reject(new Error(`The browser cannot read the file: ${data.error}`));
      else on({ phase: "reading", done: data.done, total: file.size });
    };
    worker.postMessage(file);
  }).finally(() => worker.terminate());
}

async function send(file: File, entry: Entry, on: (progress: UploadProgress) => void, signal: AbortSignal) {
  let at = await offsetOf(entry, signal);
  let fruitless = 0;
  while (at !== null) {
    on({ phase: "uploading", done: at, total: file.size });
    try {
      at = await put(file, entry, at, signal);
      fruitless = 0;
      // The server stores a file after its last byte; an empty chunk completes it.
      if (at >= file.size) return;
    } catch (error) {
      if (signal.aborted || !mayGoOn(error) || fruitless >= FRUITLESS_TRIES) throw error;
      await pause(Math.min(100 * 2 ** fruitless, LONGEST_PAUSE_MS), signal);
      fruitless += 1;
      at = await offsetOf(entry, signal);
    }
  }
}

/** Offset of an earlier upload; null if the server has the complete file. */
async function offsetOf(entry: Entry, signal: AbortSignal): Promise<number | null> {
  const { missing } = await ask(api.POST("/api/v1/blobs/missing", { body: { blobs: [entry] }, signal }));
  return missing[0]?.offset ?? (missing.length ? 0 : null);
}

async function put(file: File, entry: Entry, at: number, signal: AbortSignal): Promise<number> {
  const piece = file.slice(at, at + PIECE_BYTES);
  const answer = await fetch(`/api/v1/blobs/${entry.digest}`, {
    method: "PUT",
    headers: {
      "Content-Type": "application/octet-stream",
      "Upload-Offset": String(at),
      "Upload-Length": String(file.size),
    },
    body: piece,
    signal,
  });
  if (!answer.ok) {
    const problem = (await answer.json().catch(() => null)) as ProblemBody | null;
    const { status, statusText } = answer;
    throw new ApiError(problem ?? { type: "", title: statusText, status, detail: `The server returned ${status}.` });
  }
  return at + piece.size;
}

/** A broken connection, an offset conflict, or a restarting server. */
function mayGoOn(error: unknown): boolean {
  return error instanceof TypeError || (error instanceof ApiError && (error.status === 409 || error.status >= 500));
}

function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const timer = window.setTimeout(resolve, ms);
    signal.addEventListener("abort", () => {
      window.clearTimeout(timer);
      reject(signal.reason);
    });
  });
}
