/** Builds the workflow file for training on a dataset, from an example. */
import { parseDocument } from "yaml";
import type { DatasetUse } from "../api/schema";

/** With fewer rows, there is no eval split: it would be too small to be useful. */
const ENOUGH_TO_HOLD_OUT = 40;
const HELD_OUT = 0.1;

export interface Dataset {
  /** How the workflow file refers to it: by name, or by id if the name is ambiguous. */
  reference: string;
  name: string;
  rows: number;
  recognised: string;
}

/** Replace the data of an example by a dataset. */
export function trainingDocument(example: string, dataset: Dataset, use: DatasetUse): string {
  const document = parseDocument(example);
  const enough = dataset.rows >= ENOUGH_TO_HOLD_OUT;
  const held = enough ? { eval: { fraction: HELD_OUT, max_samples: 64 } } : {};
  document.setIn(["spec", "data"], document.createNode({ artifact: dataset.reference, ...use.data, ...held }));
  if (!enough) document.deleteIn(["spec", "evaluate"]);
  document.deleteIn(["metadata", "annotations"]);
  document.setIn(["metadata", "name"], nameFor(dataset.name));
  const rows = dataset.rows.toLocaleString("en-US");
  document.commentBefore = ` Trains on ${dataset.name}: ${dataset.recognised}, ${rows} rows.`;
  return document.toString({ lineWidth: 0 });
}

function nameFor(name: string): string {
  const plain = name
    .replace(/\.[a-z]+$/i, "")
    .replace(/[^\w.-]+/g, "-")
    .toLowerCase();
  return `on-${plain}`.slice(0, 60);
}
