import { expect, test } from "vitest";
import { parse } from "yaml";
import {
  type Choice,
  type Data,
  documentOf,
  lengthFor,
  methodsFor,
  nameOf,
  PRESETS,
  planOf,
  presetOf,
  rebuilt,
} from "./finetune";

const ROWS: Data = {
  reference: "answers.jsonl",
  source: "artifact",
  keys: { prompt_column: "q", response_column: "a" },
  rows: 5000,
  characters: 700,
};
const CHOICE: Choice = {
  name: "mine",
  model: "Qwen/Qwen3-0.6B",
  data: ROWS,
  method: "sft",
  adapter: "lora",
  preset: "balanced",
  weights: 6e8,
};

test("a choice is read back from its workflow file, with its preset", () => {
  for (const preset of PRESETS)
    for (const adapter of ["lora", "qlora", "full"] as const) {
      const text = documentOf({ ...CHOICE, adapter, preset });
      const plan = planOf(text);
      expect(plan).toEqual({
        name: "mine",
        model: "Qwen/Qwen3-0.6B",
        method: "sft",
        adapter,
        source: "artifact",
        data: "answers.jsonl",
        asChat: false,
      });
      expect(plan && presetOf(text, plan, 6e8)).toBe(preset);
    }
});

test("a setting that was changed by hand is no preset", () => {
  const text = documentOf(CHOICE).replace("batch_size: 4", "batch_size: 2");
  const plan = planOf(text);
  expect(plan && presetOf(text, plan, 6e8)).toBeNull();
});

test("the fast preset takes part of the rows, and few rows are not held out", () => {
  expect(parse(documentOf({ ...CHOICE, preset: "fast" })).spec.data.max_samples).toBe(1000);
  const few = parse(documentOf({ ...CHOICE, preset: "best", data: { ...ROWS, rows: 12 } })).spec;
  expect(few.data.eval).toBeUndefined();
  expect(few.evaluate).toBeUndefined();
  expect(few.training.eval_strategy).toBeUndefined();
});

test("pairs become chats for instruct models, and not twice", () => {
  const text = documentOf({ ...CHOICE, model: "./SmolLM2-135M-Instruct" });
  expect(parse(text).spec.data.as_chat).toBe(true);
  expect(planOf(text)?.asChat).toBe(true);
  expect(parse(documentOf(CHOICE)).spec.data.as_chat).toBeUndefined();
  const chats = documentOf({ ...CHOICE, model: "a/b-chat", data: { ...ROWS, keys: { messages_field: "m" } } });
  expect(parse(chats).spec.data.as_chat).toBeUndefined();
  expect(planOf(chats)?.asChat).toBeNull();
  const kept = documentOf({ ...CHOICE, asChat: true, data: { ...ROWS, keys: { messages_field: "m" } } });
  expect(parse(kept).spec.data.as_chat).toBeUndefined();
});

test("rewards compare with the answer of the row", () => {
  const { spec } = parse(documentOf({ ...CHOICE, method: "grpo" }));
  expect(spec.data).toMatchObject({ prompt_column: "q", reference_column: "a" });
  expect(spec.data.response_column).toBeUndefined();
  expect(spec.rewards).toEqual([{ type: "exact_match", weight: 1 }]);
});

test("smaller models and adapters take higher learning rates", () => {
  const rate = (weights: number, adapter: Choice["adapter"]) =>
    parse(documentOf({ ...CHOICE, weights, adapter })).spec.training.learning_rate as number;
  expect(rate(2e6, "lora")).toBeGreaterThan(rate(6e8, "lora"));
  expect(rate(6e8, "lora")).toBeGreaterThan(rate(7e9, "lora"));
  expect(rate(7e9, "lora")).toBeGreaterThan(rate(7e9, "full"));
});

test("sequence lengths follow long rows, within bounds", () => {
  expect([lengthFor(100), lengthFor(700), lengthFor(1e6), lengthFor(undefined)]).toEqual([128, 256, 2048, 1024]);
});

test("methods follow the format of the rows", () => {
  expect(methodsFor("preference")[0]).toBe("dpo");
  expect(methodsFor("judged")).toEqual(["kto"]);
  expect(methodsFor("messages")).toEqual(["sft"]);
  expect(methodsFor(null)).toEqual(["sft"]);
});

test("a choice keeps what it does not change", () => {
  const written = documentOf(CHOICE).replace("logging_steps: 1", "logging_steps: 7\n    seed: 3");
  const text = `${written}  notify: [{to: team}]\n`;
  const full = rebuilt(text, CHOICE, { ...CHOICE, adapter: "full" });
  const { spec } = parse(full);
  expect(spec.training).toMatchObject({ logging_steps: 7, seed: 3, learning_rate: 5e-5 });
  expect(spec.notify).toEqual([{ to: "team" }]);
  expect(spec.lora).toBeUndefined();
  expect(spec.taskType).toBe("sft");
  const back = parse(rebuilt(full, { ...CHOICE, adapter: "full" }, CHOICE)).spec;
  expect(back.lora.r).toBe(16);
  expect(back.training.seed).toBe(3);
});

test("a preset that was left by hand is set again", () => {
  const text = documentOf(CHOICE).replace("num_train_epochs: 2", "num_train_epochs: 9");
  expect(parse(rebuilt(text, CHOICE, CHOICE)).spec.training.num_train_epochs).toBe(9);
  expect(parse(rebuilt(text, CHOICE, CHOICE, ["training", "lora"])).spec.training.num_train_epochs).toBe(2);
});

test("other workflow files are none of the wizard's", () => {
  expect(planOf("spec: {stages: []}")).toBeNull();
  expect(planOf("spec: {taskType: merge}")).toBeNull();
  expect(planOf("spec: [")).toBeNull();
});

test("names are short", () => {
  expect(nameOf("HuggingFaceTB/SmolLM2-135M-Instruct", "my answers.jsonl")).toBe("smollm2-135m-instruct-on-my-answers");
});
