/** Labels of statuses, reasons and kinds; one term for each concept. */

export const STATUSES = [
  "pending",
  "queued",
  "dispatched",
  "running",
  "paused",
  "completed",
  "failed",
  "cancelled",
  "skipped",
] as const;
export type Status = (typeof STATUSES)[number];

const FINAL = new Set<string>(["completed", "failed", "cancelled", "skipped"]);

export function isFinal(status: string): boolean {
  return FINAL.has(status);
}

export const TRAINING_KINDS = ["sft", "lora_sft", "dpo", "kto", "orpo", "reward", "grpo", "rloo", "ppo"];

export function isTraining(kind: string): boolean {
  return TRAINING_KINDS.includes(kind);
}

/** `out_of_memory` → `out of memory`. */
export function plain(word: string | null | undefined): string {
  return (word ?? "").replaceAll("_", " ");
}

export const COMMANDS: Record<string, string> = {
  save_checkpoint: "Save checkpoint",
  evaluate: "Evaluate",
  pause: "Pause",
  graceful_stop: "Stop",
  save_and_stop: "Stop and keep",
  abort: "Discard",
  set: "Set",
};

/** Whether a run of this kind trains a model that answers. */
export function canChat(kind: string): boolean {
  return isTraining(kind) && kind !== "reward";
}

/** What to do about a failure, by its reason; `retry`: whether an unchanged run may succeed. */
export const NEXT: Record<string, { advice: string; retry?: true } | undefined> = {
  bad_input: { advice: "Fix the input and run it again." },
  out_of_memory: { advice: "Lower the batch size or sequence length, or use LoRA or QLoRA." },
  diverged: { advice: "Lower the learning rate." },
  disk_full: { advice: "Free disk space on the worker, then retry.", retry: true },
  network: { advice: "Retry once the worker can reach the URL.", retry: true },
  killed: { advice: "The process was killed. Often the machine was out of memory.", retry: true },
  crashed: { advice: "See the log for details.", retry: true },
  timeout: { advice: "Raise the time limit, or train for fewer steps." },
  stalled: { advice: "It made no progress. See the last lines of the log.", retry: true },
  worker_lost: { advice: "The worker went offline. Retry on another worker.", retry: true },
  delivery_failed: { advice: "The result was not uploaded. Check storage and network.", retry: true },
  upstream_failed: { advice: "An earlier task of the workflow failed." },
  bug: { advice: "See the log for the traceback." },
};

/** A hint of the server without its sentences about the command line: the page has buttons. */
export function withoutCommands(hint: string | null | undefined): string | undefined {
  const sentences = (hint ?? "").split(/(?<=[.!?])\s+/).filter((each) => !/`(tunefleet |--)/.test(each));
  return sentences.join(" ") || undefined;
}
