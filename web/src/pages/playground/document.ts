/** Workflow file of a chat: with the model of a task, or with any model. */
import type { TaskAnswer } from "../../api/schema";
import { modelInputs } from "../../lib/result";

export interface ChatOptions {
  /** Whether to use the model's chat template; null: model default. */
  chat_template: boolean | null;
  idle_s: number;
}

type Mapping = Record<string, unknown>;

export class NothingToTalkWith extends Error {}

export interface ChatStart {
  document: string;
  inputs: Record<string, Record<string, string>>;
}

export function chatWithTask(task: TaskAnswer, options: ChatOptions): ChatStart {
  const spec = (task.resolved ?? task.spec) as Mapping;
  const model = spec.model as Mapping | undefined;
  if (!model?.source) throw new NothingToTalkWith(`The task ${task.name} (${task.kind}) has no model to chat with.`);
  // Prompt and response columns are trained as plain text: with the template, a chat would miss what was learned.
  const read = (task.result as { result?: { data?: { shape?: string } } } | null)?.result?.data?.shape;
  const plain = read === "pair";
  const { chat_template = null } = options;
  options = { ...options, chat_template: chat_template ?? (plain ? false : null) };
  const more = { model: { source: model.source }, checkpoint: { load: { taskId: task.id } } };
  return written(task.name, options, more, modelInputs(task.inputs ?? {}));
}

export function chatWithModel(identifier: string, options: ChatOptions): ChatStart {
  return written(identifier.split("/").at(-1) ?? identifier, options, { model: { source: { identifier } } }, {});
}

function written(
  name: string,
  { chat_template, idle_s }: ChatOptions,
  more: Mapping,
  inputs: Record<string, string>,
): ChatStart {
  const inference = chat_template === null ? {} : { inference: { chat_template } };
  const metadata = { name: `chat with ${name}`.slice(0, 100) };
  const spec = { taskType: "chat", idle_s, ...inference, ...more };
  const document = JSON.stringify({ apiVersion: "tunefleet/v1", kind: "ChatTask", metadata, spec });
  return { document, inputs: Object.keys(inputs).length ? { [metadata.name]: inputs } : {} };
}
