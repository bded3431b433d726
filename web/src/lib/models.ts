/** The model library: what an artifact is, what it was made from, and how to chat with it. Pure. */
import type { ArtifactView, WorkerView } from "../api/schema";

type Mapping = Record<string, unknown>;

export const FORMS = ["adapter", "full", "merged", "gguf", "base", "checkpoint"] as const;
export type Form = (typeof FORMS)[number];
export const FORM_NAMES: Record<Form, string> = {
  adapter: "Adapter",
  full: "Full model",
  merged: "Merged",
  gguf: "GGUF",
  base: "Base",
  checkpoint: "Checkpoint",
};

/** A model of the library. */
export interface Model {
  artifact: ArtifactView;
  form: Form;
  name: string;
  /** Identifier of its base model; null if it is one, or if that is not known. */
  base: string | null;
  /** A checkpoint, a model of a campaign's cycle, or a version of a federation that a later one replaces. */
  intermediate: boolean;
}

export const BUILTIN = "builtin:gsm8k-llama-2m";

/** Models of the library, in the order of the artifacts: newest first. */
export function modelsOf(artifacts: readonly ArtifactView[]): Model[] {
  const federations = new Set<unknown>();
  return artifacts.map((artifact) => {
    const { origin, metadata, kind, name } = artifact;
    const replaced = metadata?.federation !== undefined && federations.has(metadata.federation);
    federations.add(metadata?.federation);
    const form = formOf(artifact);
    return {
      artifact,
      form,
      name: origin && kind !== "gguf" ? origin.task_name : name,
      base: baseOf(artifact),
      intermediate: form === "checkpoint" || !!origin?.campaign || replaced,
    };
  });
}

function formOf({ kind, origin, metadata }: ArtifactView): Form {
  if (kind === "checkpoint" || kind === "gguf" || kind === "adapter") return kind;
  if (origin) return origin.task_kind === "merge" ? "merged" : "full";
  return metadata?.campaign ? "full" : "base";
}

function baseOf({ origin }: ArtifactView): string | null {
  const identifier = origin?.model?.identifier;
  return typeof identifier === "string" ? identifier : null;
}

/** `./smollm2` → `smollm2`, `Qwen/Qwen3-0.6B` → `Qwen3-0.6B`. */
export function shortName(identifier: string): string {
  return identifier.split(/[/:]/).at(-1) || identifier;
}

export const LOADED = "checkpoint.load.path";
export const SOURCE = "model.source.identifier";

/** What a task needs to load a model. */
export interface Loading {
  /** For the name of the task. */
  name: string;
  source: Mapping;
  /** Files that replace the source's, as uploaded inputs. */
  inputs: Record<string, string>;
  /** Folder of the fine-tuned weights; none: the model is its own source. */
  load?: string;
  /** Whether it was trained on plain text, without a chat template. */
  plain: boolean;
}

/** How a chat loads a model; a text says why it cannot. */
export function loadingOf({ artifact, form, name, base }: Model): Loading | string {
  const { origin, digest } = artifact;
  if (form === "gguf") return "A GGUF file runs in llama.cpp, not on a worker.";
  if (form === "base" || (form === "full" && !origin))
    return { name, source: { identifier: `./${name}` }, inputs: { [SOURCE]: digest }, plain: false };
  if (!origin || base === null) return "Its base model is unknown.";
  const uploaded = Object.entries(origin.inputs ?? {}).filter(([pointer]) => pointer === SOURCE);
  return {
    name,
    source: origin.model ?? {},
    inputs: { ...Object.fromEntries(uploaded), [LOADED]: digest },
    load: `./${artifact.name}`,
    plain: origin.row_shape === "pair",
  };
}

/** A model that ships with the workers, or one of the hub. */
export function loadingOfName(identifier: string): Loading {
  return { name: shortName(identifier), source: { identifier }, inputs: {}, plain: false };
}

/** One entry of the playground: a model with its versions, newest first. */
export interface Entry {
  key: string;
  name: string;
  base: string | null;
  form: Form;
  versions: Model[];
}

/** Models that can be loaded, each once: runs of one name and base are its versions, and so are their checkpoints. */
export function entriesOf(models: readonly Model[]): Entry[] {
  const usable = models.filter((each) => !each.artifact.origin?.campaign && typeof loadingOf(each) !== "string");
  const groups = Map.groupBy(usable, ({ artifact, name, base }) =>
    base === null ? artifact.digest : JSON.stringify([artifact.owner, name, base]),
  );
  return [...groups].flatMap(([key, versions]) => {
    // A checkpoint is not what the entry is named after.
    const [first] = versions.toSorted(
      (one, other) => Number(one.form === "checkpoint") - Number(other.form === "checkpoint"),
    );
    return first ? [{ key, name: first.name, base: first.base, form: first.form, versions }] : [];
  });
}

/** A base model that is known by its name: the built-in one, and those of the hub that runs have used. */
export interface NamedBase {
  identifier: string;
  /** Models that were made from it. */
  models: Model[];
}

export function namedBases(models: readonly Model[]): NamedBase[] {
  const used = models.map((each) => each.base).filter((base) => base !== null && !/^[./~]/.test(base)) as string[];
  return [...new Set([BUILTIN, ...used])].map((identifier) => ({
    identifier,
    models: models.filter((each) => each.base === identifier),
  }));
}

/** What is made from a model: merges, exports, and runs that started from it. */
export function madeFrom(model: Model, models: readonly Model[]): Model[] {
  const { task_id, digest, id } = model.artifact;
  return models.filter(({ artifact }) => {
    const { loads = [], inputs = {} } = artifact.origin ?? {};
    if (artifact.id === id) return false;
    return (!!task_id && loads.includes(task_id)) || [inputs[SOURCE], inputs[LOADED]].includes(digest);
  });
}

/** What a model was made from, besides its base: the model or adapter that its run loaded. */
export function madeOf(model: Model, models: readonly Model[]): Model[] {
  const { loads = [], inputs = {} } = model.artifact.origin ?? {};
  return models.filter(
    ({ artifact, form }) =>
      form !== "checkpoint" &&
      form !== "gguf" &&
      ((!!artifact.task_id && loads.includes(artifact.task_id)) ||
        [inputs[SOURCE], inputs[LOADED]].includes(artifact.digest)),
  );
}

/** Digest of the dataset that a model's run read, if it is on the server. */
export function dataDigest({ artifact }: Pick<Model, "artifact">): string | undefined {
  const inputs = artifact.origin?.inputs ?? {};
  return inputs["data.artifact"] ?? inputs["data.path"];
}

/** Types of a GGUF file, smallest first. */
export const GGUF_TYPES = ["q4_k_m", "q5_k_m", "q6_k", "q8_0", "f16"] as const;
export type GgufType = (typeof GGUF_TYPES)[number];
export const GGUF_HINTS: Record<GgufType, string> = {
  q4_k_m: "4 bits: the usual choice for laptops",
  q5_k_m: "5 bits",
  q6_k: "6 bits",
  q8_0: "8 bits: almost no loss",
  f16: "16 bits: no loss",
};
/** The converter writes these itself; the others need the quantizer, too. */
const DIRECT: readonly GgufType[] = ["q8_0", "f16"];

export interface Submission {
  document: string;
  inputs: Record<string, Record<string, string>>;
}

/** The workflow file that merges an adapter into its base model, or exports a model to GGUF; null if neither applies. */
export function mergeOf(model: Model, gguf?: GgufType): Submission | null {
  const { artifact, form } = model;
  const loading = loadingOf(model);
  if (typeof loading === "string" || form === "checkpoint" || (form !== "adapter" && !gguf)) return null;
  const task = artifact.task_id;
  if (form === "adapter" && !task) return null;
  const { [LOADED]: _, ...base } = loading.inputs;
  const name = `${loading.name}-${gguf ?? "merged"}`.slice(0, 100);
  const spec = {
    taskType: "merge",
    model: { source: loading.source, ...(form === "adapter" ? { adapters: [{ taskId: task }] } : {}) },
    ...(form !== "adapter" && loading.load ? { checkpoint: { load: { taskId: task } } } : {}),
    ...(gguf ? { merge: { gguf: { type: gguf } } } : {}),
  };
  const document = JSON.stringify({ apiVersion: "tunefleet/v1", kind: "Workflow", metadata: { name }, spec });
  return { document, inputs: Object.keys(base).length ? { [name]: base } : {} };
}

/** Why no worker can merge, or export to a GGUF type; null if one can. */
export function mergeFault(workers: readonly WorkerView[], gguf?: GgufType): string | null {
  const needed = gguf ? ["gguf", ...(DIRECT.includes(gguf) ? [] : ["llama-quantize"])] : [];
  return workerFault(workers, "merge", needed, "merge models");
}

/** Why no worker can do something; null if one can. */
function workerFault(
  workers: readonly WorkerView[],
  kind: string,
  needed: readonly string[],
  action: string,
): string | null {
  const offers = workers
    .filter((each) => each.status === "online")
    .flatMap((each) => each.capabilities.executors)
    .filter((each) => each.kind === kind);
  if (offers.length === 0) return `No worker is online that can ${action}.`;
  const faults = offers.map(({ available, reason, features }) => {
    if (available === false) return reason ?? `A worker cannot ${action}.`;
    return needed.map((name) => features?.[name] ?? null).find((fault) => fault !== null) ?? null;
  });
  return faults.includes(null) ? null : (faults[0] ?? null);
}

/** Where a model is published, as entered; empty texts are not set. */
export interface PushTarget {
  repository: string;
  private: boolean;
  revision: string;
  message: string;
}

/** Whether a text has the form ORG/NAME; the server checks the rest. */
export function isRepository(text: string): boolean {
  return /^[\w.-]+\/[\w.-]+$/.test(text);
}

/** The workflow file that publishes a model to the Hub. */
export function pushOf({ artifact, name }: Model, target: PushTarget): Submission {
  const { task_id, name: file, digest } = artifact;
  const { repository, revision, message } = target;
  const title = `${name}-push`.slice(0, 100);
  const spec = {
    taskType: "push",
    checkpoint: { load: task_id ? { taskId: task_id, filename: file } : { path: `./${file}` } },
    push: {
      to: `hf://${repository}`,
      private: target.private,
      ...(revision ? { revision } : {}),
      ...(message ? { message } : {}),
    },
  };
  const document = JSON.stringify({ apiVersion: "tunefleet/v1", kind: "Workflow", metadata: { name: title }, spec });
  return { document, inputs: task_id ? {} : { [title]: { [LOADED]: digest } } };
}

/** Why no worker can publish to the Hub; null if one can. */
export function pushFault(workers: readonly WorkerView[]): string | null {
  return workerFault(workers, "push", ["hub"], "push models");
}
