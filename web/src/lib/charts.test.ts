import { expect, test } from "vitest";
import { chartsOf, csvOf, matching, pointAt } from "./charts";
import { type Point, placeOf } from "./series";

const at = (second: number) => new Date(Date.UTC(2026, 0, 1, 0, 0, second)).toISOString();
/** Evaluated before, during and after training; the last step has both. */
const points: Point[] = [
  { step: 0, at: at(0), values: { held_out_loss: 3 } },
  { step: 10, at: at(10), values: { loss: 2.5, num_tokens: 100, learning_rate: 1e-3 } },
  { step: 20, at: at(20), values: { loss: 2, eval_loss: 2.2, num_tokens: 200, eval_runtime: 3 } },
  { step: 30, at: at(30), values: { loss: 1.5, eval_loss: 2.4, held_out_loss: 2.2, num_tokens: 300 } },
];
const names = ["loss", "eval_loss", "held_out_loss", "learning_rate", "num_tokens", "eval_runtime"];
const drawing = { points, names, axis: "step", place: placeOf(points, "step"), all: false } as const;

test("evaluations before, during and after training are one line, which ends with the model of the last step", () => {
  const [loss] = chartsOf(drawing);
  expect(loss?.lines.map(({ label, raw }) => [label, raw])).toEqual([
    ["Training loss", "loss"],
    ["Eval loss", "eval_loss, held_out_loss"],
  ]);
  expect(loss?.lines[1]?.column).toEqual({ xs: [0, 20, 30], ys: [3, 2.2, 2.4] });
});

test("perplexity is that of a mean over tokens, and the best eval loss is marked", () => {
  expect(chartsOf(drawing).map(({ title }) => title)).toEqual(["Loss", "Learning rate"]);
  const ofTokens = chartsOf({ ...drawing, ofTokens: true });
  expect(ofTokens.map(({ title }) => title)).toEqual(["Loss", "Perplexity", "Learning rate"]);
  expect(ofTokens[0]?.highlight).toEqual({ x: 20, y: 2.2, label: "Best eval loss" });
});

test("minor metrics are charted on request, and another series says its name", () => {
  expect(chartsOf({ ...drawing, all: true }).map(({ id }) => id)).toContain("num_tokens");
  const [other] = chartsOf({ ...drawing, series: "train-2" });
  expect(other).toMatchObject({ id: "train-2/loss", title: "Loss · train-2", group: "other", separate: true });
});

test("chosen and rejected rewards share a chart, with their evaluations dashed", () => {
  const logged = ["rewards/chosen", "rewards/rejected", "eval_rewards/chosen"];
  const each = [1, 2].map((step) => ({
    step,
    at: at(step),
    values: Object.fromEntries(logged.map((name) => [name, step])),
  }));
  const found = chartsOf({ points: each, names: logged, axis: "step", place: placeOf(each, "step"), all: false });
  expect(found.map(({ title, group }) => [title, group])).toEqual([["Implicit rewards", "reward"]]);
  const lines = found[0]?.lines ?? [];
  expect(lines.map(({ label, dashed }) => [label, dashed])).toEqual([
    ["Chosen", false],
    ["Rejected", false],
    ["Eval chosen", true],
  ]);
  expect(lines[2]?.color).toBe(lines[0]?.color);
});

test("a line shows its nearest point, and nothing where it has none", () => {
  const line = { xs: [0, 20, 40], ys: [3, 2, null] };
  expect(pointAt(line, 9, 10)).toEqual({ x: 0, y: 3 });
  expect(pointAt(line, 11, 10)).toEqual({ x: 20, y: 2 });
  expect(pointAt(line, 45, 10)).toEqual({ x: 40, y: null });
  expect(pointAt(line, 10, 5)).toBeNull();
});

test("a table has a row for each position", () => {
  const [loss] = chartsOf(drawing);
  expect(csvOf(loss?.lines ?? [], "Step")).toBe("Step,Training loss,Eval loss\n0,,3\n10,2.5,\n20,2,2.2\n30,1.5,2.4\n");
});

test("a search has all its words in title, label or metric", () => {
  const charts = chartsOf(drawing);
  expect(matching(charts, "RATE learning").map(({ title }) => title)).toEqual(["Learning rate"]);
  expect(matching(charts, "held_out").map(({ title }) => title)).toEqual(["Loss"]);
  expect(matching(charts, " ")).toHaveLength(charts.length);
});
