/** The result of a training run. Pure. */

export interface TrainingResult {
  training_time_seconds?: number;
  steps?: number;
  losses?: { train_first?: number | null; train_last?: number | null };
  held_out?: {
    loss_before?: number | null;
    loss_after?: number | null;
    exact_match?: { before?: number | null; after?: number | null } | null;
    answers?: { prompt: string; before: string; after: string; reference?: string | null }[];
  } | null;
  tokens?: { seen?: number | null };
  used?: { parameters_trained?: number | null };
  memory?: { peak_bytes?: number | null };
  energy_kwh?: number | null;
}

/** The result of a push task. */
export interface PushResult {
  url?: string;
  files?: string[];
  size_bytes?: number;
}

/** The result of a merge task. */
export interface MergeResult {
  into?: "base" | "adapter";
  verification?: { relative_error: number; tolerance: number } | null;
  gguf?: {
    name: string;
    type: string;
    size_bytes: number;
    fallback_tensors?: number;
    check?: { summary: string; differences?: GgufDifference[] } | null;
  } | null;
  modelfile?: string | null;
}

/** A prompt that the GGUF file answers differently. */
export interface GgufDifference {
  prompt: string;
  model: string;
  gguf: string;
  model_probability: number;
  gguf_probability: number;
}

/** Whether a result's URL may be a link: a worker could report any text. */
export function isWebAddress(url: string): boolean {
  return /^https?:\/\//i.test(url);
}

export interface Change {
  before: number;
  after: number;
  /** Relative change; null if it starts at zero. */
  percent: number | null;
}

export function changeOf(before: number | null | undefined, after: number | null | undefined): Change | null {
  if (before == null || after == null) return null;
  return { before, after, percent: before === 0 ? null : (100 * (after - before)) / Math.abs(before) };
}
