/** The fields that most people change, read from a document and written back without touching the rest of it. */
import { type Document, isMap, parseDocument, Scalar } from "yaml";

export interface Common {
  label: string;
  path: string[];
  value: unknown;
  choices?: readonly (readonly [string, string])[];
}

const QUANTIZED = [
  ["", "no"],
  ["true", "yes"],
] as const;

const FIELDS: readonly Omit<Common, "value">[] = [
  { label: "Name", path: ["metadata", "name"] },
  { label: "Model", path: ["spec", "model", "source", "identifier"] },
  { label: "Data", path: ["spec", "data", "path"] },
  { label: "Steps", path: ["spec", "training", "max_steps"] },
  { label: "Batch size", path: ["spec", "training", "batch_size"] },
  { label: "Learning rate", path: ["spec", "training", "learning_rate"] },
  { label: "Longest sequence", path: ["spec", "training", "max_seq_length"] },
  { label: "LoRA rank", path: ["spec", "lora", "r"] },
  { label: "LoRA alpha", path: ["spec", "lora", "alpha"] },
  { label: "LoRA targets", path: ["spec", "lora", "target_modules"] },
  { label: "Load in 4 bit", path: ["spec", "model", "quantization", "load_in_4bit"], choices: QUANTIZED },
  { label: "Load in 8 bit", path: ["spec", "model", "quantization", "load_in_8bit"], choices: QUANTIZED },
];
/** These are offered in every training, the others where the document has them. */
const OFFERED = new Set(["LoRA rank", "Steps", "Learning rate", "Load in 4 bit", "Load in 8 bit"]);

/** The common fields of a document of one task; none of several, or of what is no YAML. */
export function commonFields(text: string): Common[] {
  const document = parseDocument(text);
  if (document.errors.length > 0 || !isMap(document.get("spec")) || !document.hasIn(["spec", "training"])) return [];
  const lora = document.hasIn(["spec", "lora"]);
  return FIELDS.filter((field) => document.hasIn(field.path) || OFFERED.has(field.label))
    .filter((field) => lora || !field.path.includes("lora"))
    .map((field) => ({ ...field, value: plainIn(document, field.path) }));
}

function plainIn(document: Document, path: string[]): unknown {
  const value = document.getIn(path, true);
  if (value instanceof Scalar) return value.source ?? value.value;
  return value === undefined ? undefined : (document.getIn(path) as { toJSON?: () => unknown })?.toJSON?.();
}

/** Write one value; comments and order stay, and an empty value takes the field out. */
export function changed(text: string, path: readonly string[], value: unknown): string {
  const document = parseDocument(text);
  if (value === null || value === undefined || value === "") document.deleteIn(path);
  else document.setIn(path, value);
  return document.toString({ lineWidth: 0 });
}
