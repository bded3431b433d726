import { expect, test } from "vitest";
import {
  aligned,
  axesOf,
  column,
  csv,
  leaves,
  nearest,
  type Point,
  perplexity,
  placeOf,
  smoothed,
  stepsAt,
  told,
  valueAt,
} from "./series";

const at = (second: number) => new Date(Date.UTC(2026, 0, 1, 0, 0, second)).toISOString();
const points: Point[] = [
  { step: 2, at: at(0), values: { loss: 4 } },
  { step: 4, at: at(3), values: { loss: "NaN", eval_loss: 5 } },
  { step: 4, at: at(4), values: { loss: 3 } },
  { step: 6, at: at(9), values: { loss: "Infinity" } },
];

test("a column has one value per x, the later one, and gaps without a number", () => {
  expect(column(points, "loss", "step")).toEqual({ xs: [2, 4, 6], ys: [4, 3, null] });
  expect(column(points, "loss", "time")).toEqual({ xs: [0, 3, 4, 9], ys: [4, null, 3, null] });
});

test("a time maps between the steps logged around it, and to null outside", () => {
  const moments = [-1, 0, 1.5, 3, 4, 6.5, 9, 10].map((second) => Date.parse(at(0)) + second * 1000);
  expect(stepsAt(points, moments)).toEqual([null, 2, 3, 4, 4, 5, 6, null]);
  expect(stepsAt([], moments)).toEqual(moments.map(() => null));
});

test("a checkpoint has the loss that was logged last before it", () => {
  expect([1, 2, 3, 4, 5, 9].map((step) => valueAt(points, "loss", step))).toEqual([undefined, 4, 4, 3, 3, 3]);
});

test("smoothing starts at the first value and keeps gaps", () => {
  const columnOf = (ys: (number | null)[]) => ({ xs: ys.map((_, index) => index), ys });
  expect(smoothed(columnOf([4, null, 4]), 0.9).map((y) => y?.toFixed(6))).toEqual(["4.000000", undefined, "4.000000"]);
  expect(smoothed(columnOf([1, 3]), 0)).toEqual([1, 3]);
  expect(smoothed(columnOf([0, 1]), 0.5)[1]).toBeCloseTo(2 / 3);
  expect(smoothed(columnOf([300, 2, 2]), 0.9, 1, [0, 5]).map((y) => y?.toFixed(6))).toEqual([
    undefined,
    "2.000000",
    "2.000000",
  ]);
});

test("finer points of a part do not change the smoothed line", () => {
  const wave = (xs: number[]) => ({ xs, ys: xs.map((x) => Math.sin(x / 50)) });
  const coarse = wave(Array.from({ length: 101 }, (_, index) => index * 10));
  const fine = wave([...coarse.xs.slice(0, 51), ...Array.from({ length: 500 }, (_, index) => 501 + index)]);
  const [few, many] = [smoothed(coarse, 0.8, 10), smoothed(fine, 0.8, 10)];
  for (const x of [700, 850, 1000]) {
    const difference = (few[coarse.xs.indexOf(x)] ?? 9) - (many[fine.xs.indexOf(x)] ?? 0);
    expect(Math.abs(difference)).toBeLessThan(0.12);
  }
});

test("epochs and tokens are interpolated where an evaluation logs neither", () => {
  const run: Point[] = [
    { step: 0, at: at(0), values: { eval_loss: 3 } },
    { step: 10, epoch: 0.5, at: at(1), values: { loss: 2, num_tokens: 1000 } },
    { step: 15, at: at(2), values: { eval_loss: 2.5 } },
    { step: 20, epoch: 1, at: at(3), values: { loss: 1, num_tokens: 3000 } },
    { step: 25, at: at(4), values: { eval_loss: 2 } },
  ];
  expect(axesOf(run)).toEqual(["step", "tokens", "epoch", "time"]);
  expect(axesOf(points)).toEqual(["step", "time"]);
  expect(column(run, "eval_loss", "epoch")).toEqual({ xs: [0, 0.75, 1.25], ys: [3, 2.5, 2] });
  expect(column(run, "eval_loss", "tokens").xs).toEqual([0, 2000, 4000]);
  expect(placeOf(points, "epoch")(2, 0)).toBeNull();
});

test("the nearest point, and none far outside", () => {
  const found = (x: number) => nearest({ xs: [0, 10, 20], ys: [1, 2, 3] }, x, 9);
  expect([-20, -3, 4, 6, 16, 29, 31].map(found)).toEqual([-1, 0, 0, 1, 2, 2, -1]);
  expect(nearest({ xs: [], ys: [] }, 0, 9)).toBe(-1);
});

test("columns with different steps share one axis, undefined where missing", () => {
  const loss = column(points, "loss", "step");
  const rare = column(points, "eval_loss", "step");
  expect(aligned([loss, rare])).toEqual({
    xs: [2, 4, 6],
    ys: [
      [4, 3, null],
      [undefined, 5, undefined],
    ],
  });
});

test("perplexity that overflows is a gap", () => {
  expect(perplexity([0, null, 800])).toEqual([1, null, null]);
});

test("leaves are dotted paths; a list is one value", () => {
  expect([...leaves({ a: { b: 1 }, c: [1, 2] })]).toEqual([
    ["a.b", 1],
    ["c", [1, 2]],
  ]);
});

test("new points are placed by step, and points repeated after a resume are dropped", () => {
  const known: Point[] = [1, 2, 3].map((step) => ({ step, at: at(step), values: { loss: step } }));
  const evaluated = { step: 3, at: at(4), values: { eval_loss: 9 } };
  expect(told(known, [], [evaluated]).at(-1)).toEqual({ step: 3, at: at(3), values: { loss: 3, eval_loss: 9 } });
  const again = { step: 2, at: at(5), values: { loss: 7 } };
  expect(told(known, [1], [again]).map((point) => [point.step, point.values.loss])).toEqual([
    [1, 1],
    [2, 7],
  ]);
  const late = { step: 2.5, at: at(6), values: { loss: 8 } };
  expect(told(known, [], [late]).map((point) => point.step)).toEqual([1, 2, 2.5, 3]);
  expect(known.map((point) => point.values)).toEqual([{ loss: 1 }, { loss: 2 }, { loss: 3 }]);
});

test("a table has a column for each name, empty where missing", () => {
  const odd = { step: 5, at: at(1), values: { loss: "NaN", note: 'a "b", c' } };
  expect(csv([...points.slice(0, 1), odd], ["loss", "note"])).toBe(
    `step,at,loss,note\n2,${at(0)},4,\n5,${at(1)},NaN,"a ""b"", c"\n`,
  );
});
