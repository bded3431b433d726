/** The document of a training on a dataset, made out of an example. */
import { Document, parseDocument } from "yaml";
import type { DatasetUse } from "../api/schema";

/** With fewer rows, none are held out: nothing could be told from them. */
const ENOUGH_TO_HOLD_OUT = 40;
const HELD_OUT = 0.1;

export interface Dataset {
  /** How the document calls it: its name, or its id where a name would not be found. */
  reference: string;
  name: string;
  rows: number;
  recognised: string;
}

/** Put a dataset into an example in the place of its data; what shape asks for it, a task before converts the rows. */
export function trainingDocument(example: string, dataset: Dataset, use: DatasetUse): string {
  const document = parseDocument(example);
  const enough = dataset.rows >= ENOUGH_TO_HOLD_OUT;
  const held = enough ? { eval: { fraction: HELD_OUT, max_samples: 64 } } : {};
  const source = use.convert
    ? { jsonl: { url: `\${prepare.result.jsonl_export.url}` } }
    : { artifact: dataset.reference };
  document.setIn(["spec", "data"], document.createNode({ ...source, ...use.data, ...held }));
  if (!enough) document.deleteIn(["spec", "evaluate"]);
  document.deleteIn(["metadata", "annotations"]);
  document.setIn(["metadata", "name"], nameFor(dataset.name));
  const about = ` Trains on ${dataset.name}: ${dataset.recognised}, ${dataset.rows.toLocaleString("en-US")} rows.`;
  if (!use.convert) {
    document.commentBefore = about;
    return document.toString({ lineWidth: 0 });
  }
  const whole = new Document({
    apiVersion: "tunefleet/v1",
    kind: "Workflow",
    metadata: { name: nameFor(dataset.name) },
    spec: { stages: [prepare(dataset, use)] },
  });
  whole.addIn(["spec", "stages"], { name: "train", dependsOn: ["prepare"], spec: document.get("spec") });
  whole.commentBefore = about;
  return whole.toString({ lineWidth: 0 });
}

function prepare(dataset: Dataset, use: DatasetUse) {
  const spec = { taskType: "data", sources: [{ artifact: dataset.reference }], steps: [{ convert: use.convert }] };
  return { name: "prepare", spec };
}

function nameFor(name: string): string {
  const plain = name
    .replace(/\.[a-z]+$/i, "")
    .replace(/[^\w.-]+/g, "-")
    .toLowerCase();
  return `on-${plain}`.slice(0, 60);
}
