/** Workflow file of a chat, and the phase it is in until the model answers. Pure. */
import type { ChatView, TaskAnswer } from "../api/schema";
import type { Loading } from "./models";
import { isFinal } from "./words";

export const IDLE_S = 600;

export interface ChatStart {
  document: string;
  inputs: Record<string, Record<string, string>>;
}

/** `template`: whether to use the model's chat template; null: as it was trained. */
export function chatWith({ name, source, inputs, load, plain }: Loading, template: boolean | null = null): ChatStart {
  // Prompt and response columns are trained as plain text: with the template, a chat would miss what was trained.
  const wanted = template ?? (plain ? false : null);
  const metadata = { name: `chat with ${name}`.slice(0, 100) };
  const spec = {
    taskType: "chat",
    idle_s: IDLE_S,
    model: { source },
    ...(load ? { checkpoint: { load: { path: load } } } : {}),
    ...(wanted === null ? {} : { inference: { chat_template: wanted } }),
  };
  const document = JSON.stringify({ apiVersion: "tunefleet/v1", kind: "ChatTask", metadata, spec });
  return { document, inputs: Object.keys(inputs).length ? { [metadata.name]: inputs } : {} };
}

/** Workflow file of an endpoint. */
export function endpointOf({ name, source, inputs, load, plain }: Loading): ChatStart {
  const named = name
    .toLowerCase()
    .replace(/[^a-z0-9.-]+/g, "-")
    .slice(0, 63)
    .replace(/^[-.]+|[-.]+$/g, "");
  const metadata = { name: `serve ${name}`.slice(0, 100) };
  const spec = {
    taskType: "serve",
    model: { source },
    ...(named ? { serve: { name: named } } : {}),
    ...(load ? { checkpoint: { load: { path: load } } } : {}),
    ...(plain ? { inference: { chat_template: false } } : {}),
  };
  const document = JSON.stringify({ apiVersion: "tunefleet/v1", kind: "ServeTask", metadata, spec });
  return { document, inputs: Object.keys(inputs).length ? { [metadata.name]: inputs } : {} };
}

export const PHASES = ["queued", "starting", "loading", "ready"] as const;
export type Phase = (typeof PHASES)[number] | "ended";

export interface Standing {
  phase: Phase;
  /** When it began. */
  since: string;
}

export function standingOf(
  task: Pick<TaskAnswer, "status" | "created_at" | "queued_at" | "started_at" | "finished_at">,
  chat: ChatView | undefined,
): Standing {
  const { status, created_at, queued_at, started_at, finished_at } = task;
  if (isFinal(status)) return { phase: "ended", since: finished_at ?? created_at };
  if (chat?.ready) return { phase: "ready", since: started_at ?? created_at };
  if (status === "running") return { phase: "loading", since: started_at ?? created_at };
  return { phase: status === "dispatched" ? "starting" : "queued", since: queued_at ?? created_at };
}

/** The base and the fine-tuned model; otherwise, the first model. */
export function sideBySide(models: readonly string[]): string[] {
  const both = models.filter((each) => each === "base" || each === "tuned");
  return both.length ? both : models.slice(0, 1);
}
