/** Workflow file of a chat: with the model of a task, or with any model. */
import type { TaskAnswer } from "../../api/schema";

export interface ChatOptions {
  /** Whether to use the model's chat template; null: model default. */
  chat_template: boolean | null;
  idle_s: number;
}

type Mapping = Record<string, unknown>;

export class NothingToTalkWith extends Error {}

export function chatWithTask(task: TaskAnswer, options: ChatOptions): string {
  const spec = (task.resolved ?? task.spec) as Mapping;
  const model = spec.model as Mapping | undefined;
  if (!model?.source) throw new NothingToTalkWith(`The task ${task.name} (${task.kind}) has no model to chat with.`);
  return written(task.name, options, { model: { source: model.source }, checkpoint: { load: { taskId: task.id } } });
}

export function chatWithModel(identifier: string, options: ChatOptions): string {
  return written(identifier.split("/").at(-1) ?? identifier, options, { model: { source: { identifier } } });
}

function written(name: string, { chat_template, idle_s }: ChatOptions, more: Mapping): string {
  const inference = chat_template === null ? {} : { inference: { chat_template } };
  const metadata = { name: `chat with ${name}`.slice(0, 100) };
  const spec = { taskType: "chat", idle_s, ...inference, ...more };
  return JSON.stringify({ apiVersion: "tunefleet/v1", kind: "ChatTask", metadata, spec });
}
