/** The most used fields, read from a workflow file and written back without touching the rest. */
import { type Document, isMap, isSeq, parse, parseDocument, Scalar } from "yaml";
import { isTraining } from "./words";
import { type Path, removeIn, setIn } from "./yamledit";

export interface Common {
  group: Group;
  label: string;
  path: Path;
  value: unknown;
  /** Values and their labels; the first one removes the field. */
  choices?: readonly (readonly [string, string])[];
  /** Several names, separated by commas. */
  list?: boolean;
  suggestions?: readonly string[];
}

export interface Training {
  name: string;
  kind: string;
  /** Path of its spec. */
  at: Path;
}

type Group = "Task" | "Training" | "LoRA" | "Base model";
type Known = Omit<Common, "value"> & { always?: boolean };

const TARGETS = ["all-linear", "q_proj, v_proj", "q_proj, k_proj, v_proj, o_proj"] as const;

const FIELDS: readonly Known[] = [
  { group: "Task", label: "Model", path: ["model", "source", "identifier"], always: true },
  { group: "Task", label: "Data", path: ["data", "path"] },
  { group: "Task", label: "Dataset", path: ["data", "artifact"] },
  { group: "Task", label: "Hub dataset", path: ["data", "dataset_name"] },
  { group: "Training", label: "Steps", path: ["training", "max_steps"], always: true },
  { group: "Training", label: "Batch size", path: ["training", "batch_size"], always: true },
  { group: "Training", label: "Learning rate", path: ["training", "learning_rate"], always: true },
  { group: "Training", label: "Max sequence length", path: ["training", "max_seq_length"], always: true },
  { group: "LoRA", label: "LoRA rank", path: ["lora", "r"], always: true },
  { group: "LoRA", label: "LoRA alpha", path: ["lora", "alpha"], always: true },
  { group: "LoRA", label: "LoRA dropout", path: ["lora", "dropout"], always: true },
  {
    group: "LoRA",
    label: "LoRA targets",
    path: ["lora", "target_modules"],
    list: true,
    suggestions: TARGETS,
    always: true,
  },
];

const BITS = ["load_in_4bit", "load_in_8bit"] as const;
export const PRECISION = [
  ["", "None (16-bit)"],
  ["8", "8-bit"],
  ["4", "4-bit"],
] as const;
const OF_FOUR: readonly Known[] = [
  {
    group: "Base model",
    label: "Data type",
    path: ["quantization", "quant_type"],
    choices: [
      ["", "nf4"],
      ["fp4", "fp4"],
    ],
  },
  {
    group: "Base model",
    label: "Double quantization",
    path: ["quantization", "double_quant"],
    choices: [
      ["", "yes"],
      ["false", "no"],
    ],
  },
];
const OF_FEWER: readonly Known[] = [
  {
    group: "Base model",
    label: "Compute dtype",
    path: ["quantization", "compute_dtype"],
    choices: [
      ["", "automatic"],
      ["bfloat16", "bfloat16"],
      ["float16", "float16"],
      ["float32", "float32"],
    ],
  },
];

/** The training tasks of a workflow file, in order; none if it is not valid YAML. */
export function trainingTasksIn(text: string): Training[] {
  const document = parseDocument(text);
  const spec = document.get("spec", true);
  if (document.errors.length > 0 || !isMap(spec)) return [];
  const stages = spec.get("stages", true);
  const found: Training[] = [];
  const take = (at: Path, name: string) => {
    const kind = document.getIn([...at, "taskType"]);
    if (typeof kind === "string" && isTraining(kind)) found.push({ name, kind, at });
  };
  if (isSeq(stages))
    for (const index of stages.items.keys()) {
      const stage = ["spec", "stages", index];
      take([...stage, "spec"], String(document.getIn([...stage, "name"]) ?? `stage ${index + 1}`));
    }
  else take(["spec"], String(document.getIn(["metadata", "name"]) ?? "the task"));
  return found;
}

/** The common fields of one training task. */
export function commonFields(text: string, training: Training): Common[] {
  const document = parseDocument(text);
  const { at } = training;
  const adapts = training.kind === "lora_sft" || document.hasIn([...at, "lora"]);
  const bits = precisionIn(document, at);
  const known = FIELDS.filter((field) => field.always || document.hasIn([...at, ...field.path]))
    .filter((field) => adapts || field.group !== "LoRA")
    .concat(bits === "4" ? [...OF_FOUR, ...OF_FEWER] : bits ? OF_FEWER : []);
  return known.map(({ always: _, ...field }) => {
    const path = [...at, ...field.path];
    return { ...field, path, value: shown(document, path) };
  });
}

/** Bits of the base model: `4`, `8`, or nothing; null for a full fine-tune. */
export function precision(text: string, training: Training): string | null {
  const document = parseDocument(text);
  const adapts = training.kind === "lora_sft" || document.hasIn([...training.at, "lora"]);
  return adapts ? precisionIn(document, training.at) : null;
}

function precisionIn(document: Document, at: Path): string {
  for (const name of BITS)
    for (const place of PLACES)
      if (document.getIn([...at, ...place, name]) === true) return name === "load_in_4bit" ? "4" : "8";
  return "";
}

/** A workflow file may set it in both places; it is written to the first. */
const PLACES = [["quantization"], ["model", "transformers"]] as const;

/** Set the bits of the base model; fields specific to 4-bit are removed with them. */
export function quantized(text: string, training: Training, bits: string): string {
  const { at } = training;
  const wanted = bits === "4" ? BITS[0] : BITS[1];
  const [first] = PLACES;
  const there = bits !== "" && parseDocument(text).hasIn([...at, ...first, wanted]);
  let found = there || !bits ? text : setIn(text, [...at, ...first, wanted], true);
  for (const place of PLACES)
    for (const name of BITS)
      if (!(bits && place === first && name === wanted)) found = removeIn(found, [...at, ...place, name]);
  if (bits !== "4") for (const field of OF_FOUR) found = removeIn(found, [...at, ...field.path]);
  if (!bits) for (const field of OF_FEWER) found = removeIn(found, [...at, ...field.path]);
  return there ? setIn(found, [...at, ...first, wanted], true) : found;
}

/** Write one value; comments and order are kept, and an empty value removes the field. */
export function changed(text: string, path: Path, value: unknown): string {
  return value === null || value === undefined || value === "" ? removeIn(text, path) : setIn(text, path, value);
}

function shown(document: Document, path: Path): unknown {
  const value = document.getIn(path, true);
  if (value instanceof Scalar) return value.source ?? value.value;
  if (isSeq(value)) return value.toJSON().join(", ");
  return value === undefined ? undefined : (value as { toJSON?: () => unknown })?.toJSON?.();
}

/** Input is YAML: a number stays a number. Invalid YAML is kept as text. */
export function typedValue(typed: string): unknown {
  try {
    return parse(typed || "null");
  } catch {
    return typed;
  }
}
