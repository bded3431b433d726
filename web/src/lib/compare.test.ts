import { expect, test } from "vitest";
import type { TaskView } from "../api/schema";
import { colorOf, fieldName, fieldsOf, fieldText, measuredOf, parallelAxis, ranks } from "./compare";

const run = (config: object, latest: object = {}, best: object = {}) =>
  ({ config, glance: { latest, best, loss: [] } }) as unknown as TaskView;

test("fields have the names that people use, and differences are found", () => {
  const runs = [
    run({ training: { learning_rate: 1e-4, warmup_ratio: 0.1 }, lora: { alpha: 16 } }),
    run({ training: { learning_rate: 2e-4, warmup_ratio: 0.1 } }),
  ];
  const fields = fieldsOf(runs);
  expect(fields.map(({ name, differs }) => [name, differs])).toEqual([
    ["LoRA alpha", true],
    ["Learning rate", true],
    ["Warmup ratio", false],
  ]);
  expect(fields[0]?.values).toEqual([16, undefined]);
  expect(fieldName("resources.gpu.count")).toBe("Resources gpu count");
  expect([undefined, true, ["a", "b"], 0.0002, 0.05].map(fieldText)).toEqual(["–", "yes", "a, b", "2e-4", "0.05"]);
});

test("two places with the same name are distinguished", () => {
  const names = fieldsOf([
    run({ quantization: { load_in_4bit: true }, model: { transformers: { load_in_4bit: true } } }),
  ]);
  expect(new Set(names.map(({ name }) => name)).size).toBe(2);
});

test("the best run of each metric is found by its direction", () => {
  const measured = measuredOf([
    run({}, { eval_loss: 2, accuracy: 0.5, kl: 1, epoch: 1 }, { eval_loss: 1, accuracy: 0.9 }),
    run({}, { eval_loss: 1.5, accuracy: 0.8, kl: 2 }, { eval_loss: 1.5, accuracy: 0.8 }),
    run({}, {}),
  ]);
  expect(measured.map(({ name }) => name)).toEqual(["eval_loss", "accuracy", "kl"]);
  expect(measured.map(({ best }) => [...best])).toEqual([[0], [0], []]);
  expect(measured[0]?.values).toEqual([1, 1.5, undefined]);
});

test("an axis is logarithmic for values of several orders of magnitude, and lists few words", () => {
  const rates = parallelAxis("lr", "Learning rate", [1e-5, 1e-4, 1e-3, undefined], String);
  expect(rates?.positions[1]).toBeCloseTo(0.5);
  expect(rates?.positions[3]).toBeNull();
  expect(parallelAxis("r", "Rank", [8, 16], String)?.positions).toEqual([0, 1]);
  expect(parallelAxis("s", "Scheduler", ["linear", "cosine"], String)?.ticks.map(({ text }) => text)).toEqual([
    "cosine",
    "linear",
  ]);
  expect(parallelAxis("same", "Same", [3, 3], String)).toBeNull();
  expect(parallelAxis("mixed", "Mixed", ["a", undefined], String)?.ticks).toHaveLength(2);
});

test("runs are ranked by the metric, whatever its spread", () => {
  const axis = parallelAxis("loss", "Loss", [9, 1, 1.1, undefined], String);
  expect(axis && ranks(axis, true)).toEqual([0, 1, 0.5, null]);
  expect(axis && ranks(axis, false)).toEqual([1, 0, 0.5, null]);
});

test("every run has a colour", () => {
  expect(colorOf(0, ["#111111"])).toBe("#111111");
  expect(colorOf(30, ["#111111"])).toMatch(/^hsl/);
});
