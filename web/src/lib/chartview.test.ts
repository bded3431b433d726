import { expect, test } from "vitest";
import { chartSearch, moved, searchOf, viewOf, zoomed } from "./chartview";

test("the address has what differs, and the preference is the smoothing without one", () => {
  const view = { axis: "tokens", log: true, weight: 0.6, zoom: [12.5, 90000.25] } as const;
  expect(viewOf(chartSearch({ ...searchOf(view) }), 0)).toEqual(view);
  expect(searchOf({ axis: "step", log: false, weight: 0, zoom: null })).toEqual({});
  expect(viewOf({}, 0.4).weight).toBe(0.4);
  expect(viewOf({ smooth: 0.2 }, 0.4).weight).toBe(0.2);
});

test("an invalid address is ignored", () => {
  for (const zoom of ["9~3", "a~b", "1~2~3", "0~Infinity", "", 7])
    expect(chartSearch({ axis: "mood", log: "yes", smooth: 7, zoom })).toEqual({});
});

test("a zoom keeps the position under the pointer, and stays within the whole range", () => {
  expect(zoomed([0, 100], [0, 100], 0.5, 25)).toEqual([12.5, 62.5]);
  expect(zoomed([0, 10], [0, 100], 2, 0)).toEqual([0, 20]);
  expect(zoomed([10, 90], [0, 100], 2, 50)).toBeNull();
  expect(moved([0, 10], [0, 100], 95)).toEqual([90, 100]);
  expect(moved([0, 100], [0, 100], 5)).toBeNull();
});
