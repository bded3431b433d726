/** What several runs have in common and where they differ: fields, metrics and axes. Pure. */
import type { TaskView } from "../api/schema";
import { lowerIsBetter } from "./runcolumns";
import { leaves } from "./series";
import { plain } from "./words";

/** Their ids are part of the URL. */
export const MOST_COMPARED = 100;
/** As many as there are colours that are easy to tell apart, and as many runs as the live stream follows. */
export const MOST_CURVES = 8;

const NAMES: Record<string, string> = {
  taskType: "Kind",
  "model.source.identifier": "Model",
  "model.source.revision": "Model revision",
  "model.transformers.dtype": "Data type",
  "model.transformers.load_in_4bit": "4-bit base model",
  "model.transformers.load_in_8bit": "8-bit base model",
  "quantization.load_in_4bit": "4-bit base model",
  "quantization.load_in_8bit": "8-bit base model",
  "data.artifact": "Dataset",
  "data.dataset_name": "Hub dataset",
  "data.path": "Data",
  "data.split": "Split",
  "data.max_samples": "Max rows",
  "training.max_steps": "Steps",
  "training.num_train_epochs": "Epochs",
  "training.batch_size": "Batch size",
  "training.gradient_accumulation_steps": "Gradient accumulation",
  "training.learning_rate": "Learning rate",
  "training.lr_scheduler_type": "LR scheduler",
  "training.max_seq_length": "Max sequence length",
  "training.seed": "Seed",
  "lora.r": "LoRA rank",
  "lora.target_modules": "LoRA targets",
};
/** Blocks whose name adds nothing to that of the field. */
const SILENT = new Set(["training", "data", "model", "source", "transformers"]);

/** The name of a field for people: `training.warmup_ratio` → `Warmup ratio`, `lora.alpha` → `LoRA alpha`. */
export function fieldName(path: string): string {
  const known = NAMES[path];
  if (known) return known;
  const parts = path.split(".");
  const said = parts.filter((part, at) => at === parts.length - 1 || !SILENT.has(part)).map(plain);
  const text = said.join(" ").replace(/^lora\b/, "LoRA");
  return text.charAt(0).toUpperCase() + text.slice(1);
}

export function fieldText(value: unknown): string {
  if (value === undefined || value === null) return "–";
  if (typeof value === "string") return value;
  if (typeof value === "number") return exact(value);
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (Array.isArray(value) && value.every((each) => typeof each !== "object")) return value.join(", ");
  return JSON.stringify(value);
}

/** A setting as people write it, with all its digits: `0.05`, `2e-4`. */
function exact(value: number): string {
  const size = Math.abs(value);
  return value !== 0 && (size < 1e-3 || size >= 1e6) ? value.toExponential().replace("e+", "e") : String(value);
}

export interface Field {
  path: string;
  name: string;
  /** One for each run; undefined where the field is not set. */
  values: unknown[];
  differs: boolean;
}

/** All fields of the configurations; fields with the same name in different places stay apart by their path. */
export function fieldsOf(runs: readonly TaskView[]): Field[] {
  const configs = runs.map((run) => leaves(run.config ?? {}));
  const paths = [...new Set(configs.flatMap((config) => [...config.keys()]))].sort();
  const fields = paths.map((path): Field => {
    const values = configs.map((config) => config.get(path));
    const texts = new Set(values.map((value) => JSON.stringify(value)));
    return { path, name: fieldName(path), values, differs: texts.size > 1 };
  });
  const twice = new Set(fields.map(({ name }) => name).filter((name, at, all) => all.indexOf(name) !== at));
  return fields.map((field) => (twice.has(field.name) ? { ...field, name: `${field.name} (${field.path})` } : field));
}

export interface Measured {
  name: string;
  /** The best value of each run if the metric has a direction, else the latest. */
  values: (number | undefined)[];
  /** The indexes of the best runs; none if all are equal or the metric has no direction. */
  best: ReadonlySet<number>;
}

const FIRST = ["eval_loss", "loss"];
/** Logged by trainers, and nothing that runs are compared by. */
const TRIVIAL =
  /^(epoch|step|total_flos|learning_rate|grad_norm|entropy|.*(runtime|per_second|_tokens|tokens_seen|memory).*)$/;

/** Metrics of the runs: losses first, then those with a direction, then the others. */
export function measuredOf(runs: readonly TaskView[]): Measured[] {
  const names = new Set(runs.flatMap(({ glance }) => Object.keys(glance?.latest ?? {})));
  const weight = (name: string) =>
    FIRST.includes(name) ? FIRST.indexOf(name) : lowerIsBetter(name) === null ? 9 : name.startsWith("eval_") ? 2 : 3;
  return [...names]
    .filter((name) => !TRIVIAL.test(name))
    .sort((a, b) => weight(a) - weight(b) || a.localeCompare(b))
    .map((name) => {
      const values = runs.map(({ glance }) => {
        const value = glance?.best?.[name] ?? glance?.latest?.[name];
        return typeof value === "number" ? value : undefined;
      });
      return { name, values, best: bestOf(values, lowerIsBetter(name)) };
    })
    .filter(({ values }) => values.some((value) => value !== undefined));
}

function bestOf(values: readonly (number | undefined)[], lower: boolean | null): ReadonlySet<number> {
  const known = values.filter((value) => value !== undefined);
  if (lower === null || new Set(known).size < 2) return new Set();
  const best = lower ? Math.min(...known) : Math.max(...known);
  return new Set(values.flatMap((value, at) => (value === best ? [at] : [])));
}

export interface ParallelAxis {
  key: string;
  name: string;
  /** Position of each run from 0 (bottom) to 1; null: it has no value. */
  positions: (number | null)[];
  /** The value of each run. */
  texts: string[];
  /** Labels with their positions. */
  ticks: { at: number; text: string }[];
}

/** Most categories that an axis can show. */
const MOST_CATEGORIES = 12;

/** An axis of a parallel coordinates plot; null if the values are all equal, or too many different words. */
export function parallelAxis(
  key: string,
  name: string,
  values: readonly unknown[],
  textOf: (value: number) => string,
): ParallelAxis | null {
  const known = values.filter((value) => value !== undefined && value !== null);
  if (known.length > 0 && known.every((value) => typeof value === "number" && Number.isFinite(value)))
    return numericAxis(key, name, values as (number | undefined)[], known as number[], textOf);
  const texts = values.map(fieldText);
  const sorted = [...new Set(texts)].sort((a, b) => a.localeCompare(b, undefined, { numeric: true }));
  if (sorted.length < 2 || sorted.length > MOST_CATEGORIES) return null;
  const at = (text: string) => sorted.indexOf(text) / (sorted.length - 1);
  return { key, name, positions: texts.map(at), texts, ticks: sorted.map((text) => ({ at: at(text), text })) };
}

function numericAxis(
  key: string,
  name: string,
  values: readonly (number | undefined)[],
  known: readonly number[],
  textOf: (value: number) => string,
): ParallelAxis | null {
  const [low, high] = [Math.min(...known), Math.max(...known)];
  if (low === high) return null;
  // Learning rates and ranks are chosen in orders of magnitude.
  const log = low > 0 && high / low >= 8;
  const scaled = (value: number) => (log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low));
  const distinct = [...new Set(known)].sort((a, b) => a - b);
  const middle = log ? Math.sqrt(low * high) : (low + high) / 2;
  const marked = distinct.length <= 5 ? distinct : [low, middle, high];
  return {
    key,
    name,
    positions: values.map((value) => (value === undefined || value === null ? null : scaled(value))),
    texts: values.map((value) => (value === undefined || value === null ? "–" : textOf(value))),
    ticks: marked.map((value) => ({ at: scaled(value), text: textOf(value) })),
  };
}

/** The share of runs that each run is at least as good as, by a metric axis; null without a value. */
export function ranks(axis: ParallelAxis, lower: boolean): (number | null)[] {
  const known = axis.positions.filter((each) => each !== null).sort((a, b) => (lower ? b - a : a - b));
  return axis.positions.map((each) => (each === null ? null : known.indexOf(each) / Math.max(1, known.length - 1)));
}

/** The colours of many runs: those of the charts first, then hues that are spread evenly. */
export function colorOf(at: number, first: readonly string[]): string {
  return first[at] ?? `hsl(${Math.round((at * 137.5) % 360)} 55% 50%)`;
}
