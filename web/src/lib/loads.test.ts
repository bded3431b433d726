import { expect, test } from "vitest";
import { lastHours } from "./loads";

test("samples older than the chosen hours are dropped", () => {
  const samples = ["00:00", "00:30", "01:10", "01:20"].map((time) => ({ at: `2026-01-01T${time}:00Z` }));
  expect(lastHours(samples, 1)).toEqual(samples.slice(1));
  expect(lastHours(samples, 6)).toBe(samples);
  expect(lastHours([], 1)).toEqual([]);
});
