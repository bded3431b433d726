import { describe, expect, test } from "vitest";
import { bandOf, placeOf, spanOf, ticksOf } from "./span";

const at = (seconds: number) => new Date(1_700_000_000_000 + seconds * 1000).toISOString();

describe("a time span", () => {
  test("reaches from the first time to slightly after the last", () => {
    const span = spanOf([at(10), null, at(0), at(100)]);
    expect(span?.from).toBe(Date.parse(at(0)));
    expect(span?.to).toBe(Date.parse(at(103)));
    expect(spanOf([null, undefined])).toBeNull();
  });

  test("reaches to now, and shortens a long time without events", () => {
    const times = [at(0), at(100)];
    expect(spanOf(times, Date.parse(at(120)))).toEqual({ from: Date.parse(at(0)), to: Date.parse(at(120)) });
    const span = spanOf(times, Date.parse(at(1100)));
    expect(span).toMatchObject({ to: Date.parse(at(1100)), quiet: Date.parse(at(100)) });
    if (!span) throw new Error("no span");
    expect([at(50), at(100), at(600), at(1100)].map((each) => placeOf(span, each))).toEqual([37.5, 75, 87.5, 100]);
    expect(Math.max(...ticksOf(span, 6))).toBeLessThanOrEqual(Date.parse(at(100)));
  });

  test("of one time has a width", () => {
    const span = spanOf([at(0)]);
    expect(span && span.to > span.from).toBe(true);
  });

  test("places ended, open, and outside intervals", () => {
    const span = { from: Date.parse(at(0)), to: Date.parse(at(200)) };
    expect(bandOf(span, at(50), at(100))).toEqual({ left: "25%", width: "25%" });
    expect(bandOf(span, at(150), null)).toEqual({ left: "75%", width: "25%" });
    expect(placeOf(span, at(-50))).toBe(0);
  });

  test.each([10, 700, 90_000, 2_000_000, 900_000_000])("of %i s has a few ticks, within it", (seconds) => {
    const span = { from: Date.parse(at(0)), to: Date.parse(at(seconds)) };
    const ticks = ticksOf(span, 6);
    expect(ticks.length).toBeGreaterThan(1);
    expect(ticks.length).toBeLessThan(8);
    expect(ticks.every((tick) => tick >= span.from && tick <= span.to)).toBe(true);
  });
});
