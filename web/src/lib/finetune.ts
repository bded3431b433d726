/** The workflow file of the fine-tune wizard: what it says, and how each choice changes it. Pure. */
import { type Document, isMap, parseDocument } from "yaml";

export const METHODS = ["sft", "dpo", "orpo", "kto", "grpo"] as const;
export type Method = (typeof METHODS)[number];
export const ADAPTERS = ["lora", "qlora", "full"] as const;
export type Adapter = (typeof ADAPTERS)[number];
export const PRESETS = ["fast", "balanced", "best"] as const;
export type Preset = (typeof PRESETS)[number];

export const METHOD_NAMES: Record<Method, string> = {
  sft: "Supervised (SFT)",
  dpo: "Preferences (DPO)",
  orpo: "Preferences without a reference (ORPO)",
  kto: "Rated answers (KTO)",
  grpo: "Rewards (GRPO)",
};
export const METHOD_HINTS: Record<Method, string> = {
  sft: "The model learns to give the answers in your data.",
  dpo: "The model learns to prefer the better of two answers. Use it after supervised fine-tuning.",
  orpo: "Like DPO, but in one step and without a reference model. For base models that are not fine-tuned yet.",
  kto: "The model learns from individual answers rated good or bad.",
  grpo: "The model samples answers, and a rule scores them against the reference answer.",
};
export const ADAPTER_NAMES: Record<Adapter, string> = { lora: "LoRA", qlora: "QLoRA", full: "Full fine-tune" };
export const ADAPTER_HINTS: Record<Adapter, string> = {
  lora: "Trains a small adapter; the base model stays unchanged.",
  qlora: "LoRA on a 4-bit base model: uses the least memory. Requires an NVIDIA GPU.",
  full: "Trains all weights: uses the most memory and produces a full model.",
};

/** What the rows of a dataset can train, best first. */
export function methodsFor(kind: string | null | undefined): readonly Method[] {
  switch (kind) {
    case "preference":
    case "hh":
      return ["dpo", "orpo", "kto"];
    case "judged":
      return ["kto"];
    case "prompt_response":
      return ["sft", "grpo"];
    default:
      return ["sft"];
  }
}

export interface Data {
  /** Name or id of an uploaded dataset, a built-in dataset, or a Hub id. */
  reference: string;
  source: "artifact" | "path" | "hub";
  /** Keys of the `data` block besides the source. */
  keys: Record<string, unknown>;
  rows?: number;
  /** Characters of a long row (p95), to choose the sequence length. */
  characters?: number;
  /** Whether the source has a test split. */
  split?: string;
}

export interface Plan {
  name: string;
  /** Whether prompt and response are trained as a chat; null: the rows are no pairs, or no supervised run. */
  asChat: boolean | null;
  model: string;
  method: Method;
  adapter: Adapter;
  source: Data["source"];
  data: string;
}

/** What a workflow file of the wizard says; null if it is not one, such as a file with several stages. */
export function planOf(text: string): Plan | null {
  const document = parseDocument(text);
  const spec = document.get("spec", true);
  if (document.errors.length > 0 || !isMap(spec) || spec.has("stages") || spec.has("graph")) return null;
  const kind = String(document.getIn(["spec", "taskType"]) ?? "");
  const method = kind === "lora_sft" ? "sft" : METHODS.find((each) => each === kind);
  if (!method) return null;
  const four = document.getIn(["spec", "quantization", "load_in_4bit"]) === true;
  const adapts = kind === "lora_sft" || spec.has("lora");
  const [source, data] = sourceOf(document);
  return {
    name: String(document.getIn(["metadata", "name"]) ?? ""),
    model: String(document.getIn(["spec", "model", "source", "identifier"]) ?? ""),
    method,
    adapter: adapts ? (four ? "qlora" : "lora") : "full",
    source,
    data,
    asChat: asChatIn(document, method),
  };
}

/** Rows of text and of messages are no pairs. */
function asChatIn(document: Document, method: Method): boolean | null {
  const key = (name: string) => document.getIn(["spec", "data", name]);
  if (method !== "sft" || key("messages_field") !== undefined || key("text_field") !== undefined) return null;
  return key("as_chat") === true;
}

/** Whether a model of this name is an instruct model, which has a chat template. */
export function isInstruct(model: string): boolean {
  return /^builtin:|instruct|chat|[-_]it\b/i.test(model);
}

const SOURCES = [
  ["artifact", "artifact"],
  ["path", "path"],
  ["dataset_name", "hub"],
] as const;

function sourceOf(document: Document): [Data["source"], string] {
  for (const [key, source] of SOURCES) {
    const value = document.getIn(["spec", "data", key]);
    if (typeof value === "string") return [source, value];
  }
  return ["artifact", ""];
}

/** Number of weights → class of settings. */
export function sizeOf(weights: number | null | undefined): "tiny" | "small" | "large" {
  if (weights == null) return "small";
  return weights < 5e7 ? "tiny" : weights < 1.5e9 ? "small" : "large";
}

const RATES: Record<"sft" | "pairs" | "grpo", Record<"lora" | "full", Record<ReturnType<typeof sizeOf>, number>>> = {
  sft: { lora: { tiny: 4e-3, small: 5e-4, large: 2e-4 }, full: { tiny: 1e-3, small: 5e-5, large: 2e-5 } },
  pairs: { lora: { tiny: 1e-3, small: 5e-5, large: 2e-5 }, full: { tiny: 1e-4, small: 2e-6, large: 5e-7 } },
  grpo: { lora: { tiny: 1e-4, small: 2e-5, large: 1e-5 }, full: { tiny: 2e-5, small: 2e-6, large: 1e-6 } },
};
const RANKS: Record<Preset, number> = { fast: 8, balanced: 16, best: 32 };
const EPOCHS: Record<Preset, number> = { fast: 1, balanced: 2, best: 3 };
/** Rows of the fast preset. */
export const FAST_ROWS = 1000;
export const PRESET_HINTS: Record<Preset, string> = {
  fast: `One epoch over at most ${FAST_ROWS.toLocaleString("en-US")} rows, with a small adapter: for a first test.`,
  balanced: "Two epochs over all rows: a good result for most data.",
  best: "Three epochs, a larger adapter, an evaluation after each epoch; the best checkpoint is kept.",
};

const EFFECTIVE_BATCH = 16;
const LENGTHS = [128, 256, 512, 1024, 2048];
/** Few languages have shorter tokens. */
const CHARACTERS_PER_TOKEN = 3;

/** The `training` block of a preset. */
export function trainingOf(plan: Pick<Plan, "method" | "adapter">, preset: Preset, weights?: number | null) {
  const { method, adapter } = plan;
  const rates = RATES[method === "sft" ? "sft" : method === "grpo" ? "grpo" : "pairs"];
  const learning_rate = rates[adapter === "full" ? "full" : "lora"][sizeOf(weights)];
  const batch_size = method === "grpo" ? 8 : 4;
  return {
    num_train_epochs: EPOCHS[preset],
    batch_size,
    gradient_accumulation_steps: method === "grpo" ? 1 : EFFECTIVE_BATCH / batch_size,
    learning_rate,
    lr_scheduler_type: "cosine",
    warmup_ratio: 0.05,
    logging_steps: 1,
    ...(preset === "best" ? { eval_strategy: "epoch", save_strategy: "epoch", load_best_model_at_end: true } : {}),
    ...(method === "grpo" ? { num_generations: 8 } : {}),
  };
}

/** Sequence length for rows of this many characters. */
export function lengthFor(characters: number | undefined): number {
  const tokens = (characters ?? 2000) / CHARACTERS_PER_TOKEN;
  return LENGTHS.find((each) => each >= tokens) ?? (LENGTHS.at(-1) as number);
}

const ENOUGH_TO_HOLD_OUT = 40;

export interface ModelChoice {
  identifier: string;
  /** Digest of an uploaded folder; it is submitted as an input. */
  digest?: string;
  weights?: number;
}

export interface Choice {
  name: string;
  model: string;
  data: Data;
  method: Method;
  adapter: Adapter;
  preset: Preset;
  weights?: number | null;
  /** Default: for instruct models. */
  asChat?: boolean;
}

/** Rows of prompt and response; with no keys, the run recognizes the columns itself, such as those of Alpaca. */
function isPairs({ keys }: Data): boolean {
  return keys.messages_field === undefined && keys.text_field === undefined;
}

/** The workflow file of a choice. */
export function documentOf(choice: Choice): string {
  const { name, model, data, method, adapter, preset, weights } = choice;
  const adapts = adapter !== "full";
  const spec: Record<string, unknown> = {
    taskType: method === "sft" && adapts ? "lora_sft" : method,
    model: { source: { identifier: model } },
    data: dataOf(data, method, preset, isPairs(data) && (choice.asChat ?? isInstruct(model))),
  };
  if (adapts) spec.lora = { r: RANKS[preset], alpha: 2 * RANKS[preset], target_modules: "all-linear" };
  if (adapter === "qlora") spec.quantization = { load_in_4bit: true };
  if (method === "grpo") {
    spec.rewards = [{ type: "exact_match", weight: 1 }];
    spec.generation = { max_new_tokens: 128 };
  }
  spec.training = {
    ...trainingOf(choice, preset, weights),
    max_seq_length: lengthFor(data.characters),
    ...(holdsOut(data) || preset !== "best"
      ? {}
      : { eval_strategy: undefined, save_strategy: undefined, load_best_model_at_end: undefined }),
  };
  if (method === "sft" && holdsOut(data)) spec.evaluate = { answers: 3, max_new_tokens: 64 };
  const document = parseDocument("");
  document.contents = document.createNode(
    JSON.parse(JSON.stringify({ apiVersion: "tunefleet/v1", kind: "Workflow", metadata: { name }, spec })),
  ) as typeof document.contents;
  return document.toString({ lineWidth: 0 });
}

function holdsOut(data: Data): boolean {
  // The rows of a Hub dataset are not counted; such datasets are rarely small.
  return data.split !== undefined || (data.rows ?? ENOUGH_TO_HOLD_OUT) >= ENOUGH_TO_HOLD_OUT;
}

function dataOf(data: Data, method: Method, preset: Preset, asChat: boolean): Record<string, unknown> {
  const { reference, source, rows } = data;
  const keys = { ...data.keys };
  if (method === "sft" && asChat) {
    keys.as_chat = true;
    delete keys.separator;
  }
  if (method === "grpo" && keys.response_column !== undefined) {
    keys.reference_column = keys.response_column;
    delete keys.response_column;
  }
  const held = data.split
    ? { split: data.split, max_samples: 64 }
    : holdsOut(data)
      ? { fraction: 0.1, max_samples: 64 }
      : undefined;
  return {
    [source === "hub" ? "dataset_name" : source]: reference,
    ...keys,
    ...(preset === "fast" && (rows ?? Number.POSITIVE_INFINITY) > FAST_ROWS ? { max_samples: FAST_ROWS } : {}),
    ...(held ? { eval: held } : {}),
  };
}

/** The preset that a file has the values of; null if values were changed by hand. */
export function presetOf(text: string, plan: Plan, weights?: number | null): Preset | null {
  const document = parseDocument(text);
  return (
    PRESETS.find((preset) => {
      const wanted = trainingOf(plan, preset, weights);
      const rank = plan.adapter === "full" || document.getIn(["spec", "lora", "r"]) === RANKS[preset];
      const keys = ["num_train_epochs", "learning_rate", "batch_size", "gradient_accumulation_steps"] as const;
      return rank && keys.every((key) => document.getIn(["spec", "training", key]) === wanted[key]);
    }) ?? null
  );
}

/**
 * A workflow file after a choice: only what the choice changes is written, so that other settings and blocks stay.
 *
 * `force`: paths below `spec` that are written even if the choice did not change them, such as those of a preset.
 */
export function rebuilt(text: string, before: Choice, after: Choice, force: readonly string[] = []): string {
  const old = leaves(parseDocument(documentOf(before)).toJS());
  const wanted = leaves(parseDocument(documentOf(after)).toJS());
  const document = parseDocument(text);
  for (const [key, { path }] of old) if (!wanted.has(key) && document.hasIn(path)) document.deleteIn(path);
  for (const [key, { path, value }] of wanted) {
    const same = JSON.stringify(old.get(key)?.value) === JSON.stringify(value);
    const forced = force.some((each) => key.startsWith(`spec.${each}.`));
    if (!same || (forced && JSON.stringify(document.getIn(path)) !== JSON.stringify(value)))
      document.setIn(path, document.createNode(value));
  }
  for (const block of ["lora", "quantization", "generation"]) {
    const left = document.getIn(["spec", block], true);
    if (isMap(left) && left.items.length === 0) document.deleteIn(["spec", block]);
  }
  return document.toString({ lineWidth: 0 });
}

/** Values by dotted path; a list is one value. */
function leaves(
  value: unknown,
  path: readonly string[] = [],
  found = new Map<string, { path: readonly string[]; value: unknown }>(),
) {
  if (typeof value === "object" && value !== null && !Array.isArray(value))
    for (const [key, inner] of Object.entries(value)) leaves(inner, [...path, key], found);
  else found.set(path.join("."), { path, value });
  return found;
}

/** A name for the run: `smollm2-135m-instruct-on-answers`. */
export function nameOf(model: string, data: string): string {
  const short = (text: string) =>
    (text.split(/[/:]/).at(-1) ?? "")
      .replace(/\.[a-z]+$/i, "")
      .replace(/[^\w.-]+/g, "-")
      .toLowerCase();
  return `${short(model)}-on-${short(data)}`.slice(0, 60);
}
