import { expect, test } from "vitest";
import { isMinor, lineName, metric, metricName, metricsOf, otherName } from "./metrics";

test.each([
  ["loss", "Training loss"],
  ["eval_loss", "Eval loss"],
  ["held_out_loss", "Eval loss"],
  ["eval_mean_token_accuracy", "Eval token accuracy"],
  ["learning_rate", "Learning rate"],
  ["rewards/margins", "Reward margin"],
  ["eval_rewards/chosen", "Eval implicit rewards: chosen"],
  ["rewards/format_reward/mean", "Rewards by function: format reward"],
  ["kl", "KL divergence"],
  ["eval_kl", "Eval KL divergence"],
  ["val/clipfrac_avg", "Val clipfrac avg"],
])("%s is %s", (name, shown) => expect(metricName(name)).toBe(shown));

test("evaluations before, during and after training are one metric", () => {
  expect(metricsOf(["eval_loss", "held_out_loss", "loss"])).toEqual(["eval_loss", "loss"]);
  expect(metricsOf(["held_out_loss", "held_out_exact_match"])).toEqual(["eval_loss", "eval_exact_match"]);
  expect(metricsOf(["held_out_accuracy", "rewards/accuracies"])).toEqual([
    "eval_rewards/accuracies",
    "rewards/accuracies",
  ]);
  // A reward model logs the accuracy under a name of its own.
  expect(metricsOf(["held_out_accuracy", "accuracy"])).toEqual(["eval_accuracy", "accuracy"]);
  expect(otherName("eval_rewards/chosen")).toBe("held_out_reward_good");
  expect(otherName("eval_loss")).toBe("held_out_loss");
  expect(otherName("loss")).toBeUndefined();
});

test("a metric and its evaluation share a chart, and so do chosen and rejected", () => {
  const names = ["rewards/chosen", "rewards/rejected", "eval_rewards/chosen"];
  expect(new Set(names.map((name) => metric(name).chart)).size).toBe(1);
  expect(names.map((name) => lineName(metric(name)))).toEqual(["Chosen", "Rejected", "Eval chosen"]);
  expect(lineName(metric("loss"))).toBe("Training loss");
  expect(metric("eval_loss").chart).toBe(metric("loss").chart);
});

test("counters and the duration of evaluations are minor", () => {
  expect(["eval_runtime", "num_tokens", "total_flos", "train_samples_per_second"].every(isMinor)).toBe(true);
  expect(["loss", "train_tokens_per_second", "reward_std"].some(isMinor)).toBe(false);
});
