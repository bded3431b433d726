import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { RESTS_AFTER_MS, whileVisible } from "./visible";

let seen: EventTarget & { hidden: boolean };
const told: string[] = [];
const show = (hidden: boolean) => {
  seen.hidden = hidden;
  seen.dispatchEvent(new Event("visibilitychange"));
};

beforeEach(() => {
  vi.useFakeTimers();
  told.length = 0;
  seen = Object.assign(new EventTarget(), { hidden: false });
  vi.stubGlobal("document", seen);
  vi.stubGlobal("window", globalThis);
});
afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

test("a stream is suspended while hidden, but not for a short absence", () => {
  const end = whileVisible(
    () => told.push("open"),
    () => told.push("close"),
  );
  show(true);
  vi.advanceTimersByTime(RESTS_AFTER_MS - 1);
  show(false);
  vi.advanceTimersByTime(2 * RESTS_AFTER_MS);
  expect(told).toEqual(["open"]);
  show(true);
  vi.advanceTimersByTime(RESTS_AFTER_MS);
  expect(told).toEqual(["open", "close"]);
  show(false);
  expect(told).toEqual(["open", "close", "open"]);
  end();
  show(true);
  vi.advanceTimersByTime(2 * RESTS_AFTER_MS);
  expect(told).toEqual(["open", "close", "open", "close"]);
});

test("a window that opens in the background opens no stream until visible", () => {
  seen.hidden = true;
  whileVisible(
    () => told.push("open"),
    () => told.push("close"),
  )();
  expect(told).toEqual([]);
});
