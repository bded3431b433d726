import { expect, test } from "vitest";
import type { TaskView } from "../api/schema";
import {
  columnsOf,
  DEFAULT_COLUMNS,
  isSort,
  lowerIsBetter,
  methodName,
  metricColumns,
  metricOf,
  shortName,
  sortsUpFirst,
} from "./runcolumns";

const run = (latest: Record<string, number>, best: Record<string, number>) =>
  ({ glance: { latest, best, loss: [] } }) as unknown as TaskView;

test("any metric of the loaded runs is a column, and the fixed ones are not offered twice", () => {
  const runs = [run({ loss: 1, eval_accuracy: 0.5 }, { eval_loss: 2, eval_accuracy: 0.6 })];
  const offered = metricColumns(runs, ["best.rouge_l"]);
  expect(offered.map(({ id }) => id).sort()).toEqual(["best.eval_accuracy", "best.rouge_l", "latest.eval_accuracy"]);
  expect(offered.map(({ label }) => label)).toContain("Best eval preference accuracy");
  expect(metricOf(runs[0] as TaskView, "best.eval_accuracy")).toBe(0.6);
  expect(metricOf(runs[0] as TaskView, "latest.grad_norm")).toBeUndefined();
});

test("chosen columns keep their order; the name is first and unknown ones are left out", () => {
  const ids = (chosen: string[]) => columnsOf(chosen, false).map(({ id }) => id);
  expect(ids(["status", "gone", "latest.lr"])).toEqual(["name", "status", "latest.lr"]);
  expect(ids([...DEFAULT_COLUMNS])).toEqual(DEFAULT_COLUMNS);
  expect(columnsOf([...DEFAULT_COLUMNS], true)).toHaveLength(3);
});

test("a sort is a column or a metric, and starts at its better end", () => {
  expect(["name", "ran", "best.eval_loss", "latest.rewards/mean"].every(isSort)).toBe(true);
  expect(["curve", "tags", "nothing", 'latest."', "best."].some(isSort)).toBe(false);
  expect([lowerIsBetter("eval_loss"), lowerIsBetter("token_accuracy"), lowerIsBetter("learning_rate")]).toEqual([
    true,
    false,
    null,
  ]);
  expect([sortsUpFirst("name"), sortsUpFirst("best.eval_loss"), sortsUpFirst("ran")]).toEqual([true, true, false]);
});

test("methods and sources have the names that people use", () => {
  expect(methodName("qlora_sft")).toBe("SFT · QLoRA");
  expect(methodName("full_reward")).toBe("Reward · full");
  expect(methodName(null)).toBe("");
  expect(shortName("Qwen/Qwen2.5-0.5B")).toBe("Qwen2.5-0.5B");
  expect(shortName("builtin:gsm8k")).toBe("gsm8k");
  expect(shortName("models/tiny/")).toBe("tiny/");
});
