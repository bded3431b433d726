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

test("other workflow files are none of the wizard's", () => {
  expect(planOf("spec: {stages: []}")).toBeNull();
  expect(planOf("spec: {taskType: merge}")).toBeNull();
  expect(planOf("spec: [")).toBeNull();
});

test("names are short", () => {
  expect(nameOf("HuggingFaceTB/SmolLM2-135M-Instruct", "my answers.jsonl")).toBe("smollm2-135m-instruct-on-my-answers");
});
