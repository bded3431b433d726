/** The result of a training run, and the merge of its adapter. Pure. */
import type { TaskAnswer } from "../api/schema";

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

type Mapping = Record<string, unknown>;

/** The workflow file that merges a run's adapter into its base model; null if the run names no base model. */
export function mergeOf(
  task: Pick<TaskAnswer, "id" | "name" | "spec" | "resolved" | "inputs">,
): { document: string; inputs: Record<string, Record<string, string>> } | null {
  const spec = (task.resolved ?? task.spec) as Mapping;
  const source = (spec.model as Mapping | undefined)?.source;
  if (!source) return null;
  const name = `${task.name}-merged`.slice(0, 100);
  const body = { taskType: "merge", model: { source, adapters: [{ taskId: task.id }] } };
  const document = JSON.stringify({ apiVersion: "tunefleet/v1", kind: "Workflow", metadata: { name }, spec: body });
  const kept = modelInputs(task.inputs ?? {});
  return { document, inputs: Object.keys(kept).length ? { [name]: kept } : {} };
}

/** The uploaded base model of a task, which a task with the same model needs again. */
export function modelInputs(inputs: Readonly<Record<string, string>>): Record<string, string> {
  return Object.fromEntries(Object.entries(inputs).filter(([pointer]) => pointer.startsWith("model.source.")));
}
