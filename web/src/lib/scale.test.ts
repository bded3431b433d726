import { describe, expect, test } from "vitest";
import { logTicks, outlierBounds, rangeOf, roundTicks, tickLabels } from "./scale";
import type { Column } from "./series";

const columnOf = (ys: readonly (number | null)[]): Column => ({ xs: ys.map((_, at) => at), ys: [...ys] });
/** A loss that falls from 3 to 2. */
const falling = Array.from({ length: 200 }, (_, at) => 2 + Math.exp(-at / 40));

describe("the y range of a chart", () => {
  test("leaves out a first step that is far away, and counts it", () => {
    const shown = rangeOf([columnOf([300, ...falling])], null);
    expect(shown).toMatchObject({ above: 1, below: 0 });
    expect(shown?.high).toBeLessThan(3.2);
    expect(rangeOf([columnOf([300, ...falling])], null, { all: true })).toMatchObject({ above: 0, below: 0 });
  });

  test("has all values if none is far away, and with few points", () => {
    expect(outlierBounds(falling)).toBeNull();
    expect(outlierBounds(Array.from({ length: 500 }, (_, at) => Math.sin(at)))).toBeNull();
    expect(outlierBounds([300, ...falling.slice(0, 20)])).toBeNull();
    expect(outlierBounds([...Array.from({ length: 50 }, () => 0), 1])).toBeNull();
  });

  test("never hides a whole line, however far it is from the others", () => {
    const shown = rangeOf([columnOf(falling), columnOf([80, 81, 82])], null);
    expect(shown).toMatchObject({ above: 0, below: 0 });
    expect(shown?.high).toBeGreaterThan(82);
  });

  test("is that of the shown part", () => {
    const shown = rangeOf([columnOf([300, ...falling])], [150, 200]);
    expect(shown?.high).toBeLessThan(2.1);
    expect(rangeOf([columnOf([300, ...falling])], [0, 2])?.high).toBeGreaterThan(300);
  });

  test("of a constant has room around it, and of nothing is none", () => {
    expect(rangeOf([columnOf([2, 2, 2])], null)).toEqual({ low: 1.8, high: 2.2, above: 0, below: 0 });
    expect(rangeOf([columnOf([null, null])], null)).toBeNull();
  });
});

test.each([
  [
    [1.5, 3],
    [1.5, 2, 2.5, 3],
  ],
  [
    [0.03, 40],
    [0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20],
  ],
  [
    [1e-6, 1],
    [1e-6, 1e-4, 0.01, 1],
  ],
] as const)("a logarithmic axis of %j has the ticks %j", ([low, high], ticks) => {
  expect(logTicks(low, high)).toEqual(ticks);
});

test("a logarithmic range has the positive values, outliers too", () => {
  expect(rangeOf([columnOf([300, ...falling, 0])], null, { log: true })).toMatchObject({ above: 0, below: 1 });
  expect(rangeOf([columnOf([2, 2])], null, { log: true })).toEqual({ low: 1, high: 4, above: 0, below: 0 });
});

test("ticks are round", () => {
  expect(roundTicks(0.07, 0.43)).toEqual([0.1, 0.2, 0.3, 0.4]);
});

test.each([
  [
    [2, 2.0001, 2.0002],
    ["2.0000", "2.0001", "2.0002"],
  ],
  [
    [0, 5000, 10000, 15000],
    ["0", "5k", "10k", "15k"],
  ],
  [
    [0, 500, 1000],
    ["0", "500", "1,000"],
  ],
  [
    [1_500_000, 20_000_000],
    ["1.5M", "20.0M"],
  ],
  [
    [0, 5e-5, 1e-4, 1.5e-4],
    ["0", "5e-5", "1e-4", "1.5e-4"],
  ],
  [
    [0.25, 0.5],
    ["0.25", "0.50"],
  ],
  [
    [12_340, 12_345, 12_350],
    ["12,340", "12,345", "12,350"],
  ],
  [[], []],
])("ticks %j are written %j", (ticks, labels) => expect(tickLabels(ticks)).toEqual(labels));
