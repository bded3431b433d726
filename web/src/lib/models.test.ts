import { expect, test } from "vitest";
import type { ArtifactOrigin, ArtifactView, WorkerView } from "../api/schema";
import { chatWith, standingOf } from "./chats";
import {
  entriesOf,
  isRepository,
  loadingOf,
  madeFrom,
  mergeFault,
  mergeOf,
  modelsOf,
  pushFault,
  pushOf,
} from "./models";

let count = 0;
function artifact(part: Partial<ArtifactView>, origin?: Partial<ArtifactOrigin>): ArtifactView {
  count += 1;
  return {
    id: `art-${count}`,
    name: "final_lora",
    kind: "adapter",
    digest: `digest-${count}`,
    size_bytes: 1,
    file_count: 1,
    task_id: origin ? `task-${count}` : null,
    owner: "ann",
    created_at: "2026-01-01T00:00:00Z",
    metadata: {},
    origin: origin
      ? {
          task_name: "sums",
          task_kind: "lora_sft",
          status: "completed",
          model: { identifier: "./tiny" },
          inputs: { "model.source.identifier": "base-digest" },
          loads: [],
          campaign: false,
          ...origin,
        }
      : null,
    ...part,
  };
}

const one = (view: ArtifactView) => modelsOf([view])[0] ?? expect.unreachable();

test("a model is named after its run, and says what form it has", () => {
  const models = modelsOf([
    artifact({}, {}),
    artifact({ kind: "model", name: "final_model" }, { task_kind: "merge", task_name: "sums-merged" }),
    artifact({ kind: "model" }, { task_kind: "sft" }),
    artifact({ kind: "gguf", name: "model-q8_0.gguf" }, { task_kind: "merge" }),
    artifact({ kind: "model", name: "tiny" }),
    artifact({ kind: "checkpoint", name: "checkpoint-4" }, {}),
  ]);
  expect(models.map(({ form, name, base, intermediate }) => [form, name, base, intermediate])).toEqual([
    ["adapter", "sums", "./tiny", false],
    ["merged", "sums-merged", "./tiny", false],
    ["full", "sums", "./tiny", false],
    ["gguf", "model-q8_0.gguf", "./tiny", false],
    ["base", "tiny", null, false],
    ["checkpoint", "sums", "./tiny", true],
  ]);
});

test("models of campaign cycles and replaced versions of a federation are intermediate", () => {
  const models = modelsOf([
    artifact({}, { campaign: true }),
    artifact({ name: "fed.v2", metadata: { federation: "fed-1" } }),
    artifact({ name: "fed.v1", metadata: { federation: "fed-1" } }),
  ]);
  expect(models.map((each) => each.intermediate)).toEqual([true, false, true]);
});

test("runs of one name and base are versions of one entry, and so are their checkpoints", () => {
  const newest = artifact({ kind: "checkpoint", name: "checkpoint-4" }, {});
  const entries = entriesOf(
    modelsOf([newest, artifact({}, {}), artifact({}, {}), artifact({}, { task_name: "other" })]),
  );
  expect(entries.map(({ name, form, versions }) => [name, form, versions.length])).toEqual([
    ["sums", "adapter", 3],
    ["other", "adapter", 1],
  ]);
});

test("a chat loads the files by digest, and plain text without the template", () => {
  const model = one(artifact({ digest: "tuned" }, { row_shape: "pair" }));
  const loading = loadingOf(model);
  if (typeof loading === "string") return expect.unreachable(loading);
  const { document, inputs } = chatWith(loading);
  expect(JSON.parse(document).spec).toMatchObject({
    taskType: "chat",
    model: { source: { identifier: "./tiny" } },
    checkpoint: { load: { path: "./final_lora" } },
    inference: { chat_template: false },
  });
  expect(inputs).toEqual({
    "chat with sums": { "model.source.identifier": "base-digest", "checkpoint.load.path": "tuned" },
  });
  expect(JSON.parse(chatWith(loading, true).document).spec.inference).toEqual({ chat_template: true });
});

test("an uploaded model is its own source; a file for llama.cpp cannot be loaded", () => {
  const loading = loadingOf(one(artifact({ kind: "model", name: "tiny", digest: "d" })));
  expect(loading).toMatchObject({ source: { identifier: "./tiny" }, inputs: { "model.source.identifier": "d" } });
  expect(loadingOf(one(artifact({ kind: "gguf" }, {})))).toMatch("llama.cpp");
  expect(loadingOf(one(artifact({})))).toMatch("base model is unknown");
});

test("an adapter is merged; a full model is only exported", () => {
  const adapter = one(artifact({}, {}));
  const merge = mergeOf(adapter);
  expect(JSON.parse(merge?.document ?? "").spec.model.adapters).toEqual([{ taskId: adapter.artifact.task_id }]);
  expect(merge?.inputs).toEqual({ "sums-merged": { "model.source.identifier": "base-digest" } });
  const full = one(artifact({ kind: "model" }, { task_kind: "sft" }));
  expect(mergeOf(full)).toBeNull();
  expect(JSON.parse(mergeOf(full, "q8_0")?.document ?? "").spec).toMatchObject({
    checkpoint: { load: { taskId: full.artifact.task_id } },
    merge: { gguf: { type: "q8_0" } },
  });
  expect(mergeOf(one(artifact({ kind: "checkpoint" }, {})), "q8_0")).toBeNull();
});

test("a type that no worker can write has the reason", () => {
  const worker = (features: Record<string, string | null>, status = "online") =>
    ({ status, capabilities: { executors: [{ kind: "merge", features }] } }) as unknown as WorkerView;
  expect(mergeFault([])).toMatch("No worker");
  const direct = worker({ gguf: null, "llama-quantize": "not found" });
  expect(mergeFault([direct], "q8_0")).toBeNull();
  expect(mergeFault([direct], "q4_k_m")).toBe("not found");
  expect(mergeFault([worker({ gguf: "no converter" }), direct], "q8_0")).toBeNull();
});

const target = { repository: "org/tuned", private: true, revision: "", message: "" };

test("a model is pushed by its task and name, an uploaded one by its digest", () => {
  const adapter = one(artifact({}, {}));
  const push = pushOf(adapter, target);
  expect(JSON.parse(push.document).spec).toEqual({
    taskType: "push",
    checkpoint: { load: { taskId: adapter.artifact.task_id, filename: "final_lora" } },
    push: { to: "hf://org/tuned", private: true },
  });
  expect(push.inputs).toEqual({});
  const file = one(artifact({ kind: "gguf", name: "model-q8_0.gguf" }, { task_kind: "merge" }));
  const named = { ...target, private: false, revision: "v1", message: "First" };
  expect(JSON.parse(pushOf(file, named).document).spec).toMatchObject({
    checkpoint: { load: { filename: "model-q8_0.gguf" } },
    push: { private: false, revision: "v1", message: "First" },
  });
  const base = pushOf(one(artifact({ kind: "model", name: "tiny", digest: "d" })), target);
  expect(JSON.parse(base.document).spec.checkpoint).toEqual({ load: { path: "./tiny" } });
  expect(base.inputs).toEqual({ "tiny-push": { "checkpoint.load.path": "d" } });
});

test("a push needs a repository, and a worker with a token", () => {
  expect(["org/name", "o.r-g/n_a"].every(isRepository)).toBe(true);
  expect(["", "name", "org/", "a/b/c", "hf://org/name", "org/na me"].some(isRepository)).toBe(false);
  const worker = (executors: unknown[]) => ({ status: "online", capabilities: { executors } }) as unknown as WorkerView;
  const without = worker([{ kind: "push", features: { hub: "HF_TOKEN is not set" } }]);
  expect(pushFault([worker([{ kind: "merge", features: {} }])])).toMatch("No worker");
  expect(pushFault([without])).toBe("HF_TOKEN is not set");
  expect(pushFault([without, worker([{ kind: "push", features: { hub: null } }])])).toBeNull();
});

test("a base model knows what was made from it", () => {
  const models = modelsOf([
    artifact({ id: "merged", kind: "model" }, { task_kind: "merge", loads: ["task-train"] }),
    artifact({ id: "adapter", task_id: "task-train" }, {}),
    artifact({ id: "base", kind: "model", digest: "base-digest" }),
  ]);
  const made = (id: string) => {
    const model = models.find(({ artifact: each }) => each.id === id);
    return model ? madeFrom(model, models).map(({ artifact: each }) => each.id) : [];
  };
  expect(made("base")).toEqual(["merged", "adapter"]);
  expect(made("adapter")).toEqual(["merged"]);
});

test("a chat is queued, starts, loads and is ready", () => {
  const task = { status: "queued", created_at: "1", queued_at: "2", started_at: null, finished_at: null };
  const chat = { task_id: "t", status: "running", ready: true, models: [], waiting: 0 };
  expect(standingOf(task, undefined)).toEqual({ phase: "queued", since: "2" });
  expect(standingOf({ ...task, status: "dispatched" }, undefined).phase).toBe("starting");
  const running = { ...task, status: "running", started_at: "3" };
  expect(standingOf(running, { ...chat, ready: false })).toEqual({ phase: "loading", since: "3" });
  expect(standingOf(running, chat).phase).toBe("ready");
  expect(standingOf({ ...task, status: "completed" }, chat).phase).toBe("ended");
});
