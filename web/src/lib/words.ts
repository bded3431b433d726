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
