import { afterEach, expect, test, vi } from "vitest";
import { serverNow, tellServerTime } from "./servertime";

afterEach(() => {
  vi.useRealTimers();
});

test("a wrong clock is corrected, and a small difference is ignored", () => {
  vi.useFakeTimers({ now: Date.parse("2026-01-01T00:00:00Z") });
  tellServerTime("2026-01-01T01:00:00Z");
  vi.advanceTimersByTime(60_000);
  expect(new Date(serverNow()).toISOString()).toBe("2026-01-01T01:01:00.000Z");
  tellServerTime("2026-01-01T00:01:01Z");
  expect(serverNow()).toBe(Date.now());
});
