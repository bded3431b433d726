import { expect, test, vi } from "vitest";
import { unique } from "./unique";

test("keys are unique, also without randomUUID", () => {
  vi.stubGlobal("crypto", { getRandomValues: crypto.getRandomValues.bind(crypto) });
  const made = Array.from({ length: 100 }, unique);
  vi.unstubAllGlobals();
  expect(made[0]).toMatch(/^[0-9a-f]{32}$/);
  expect(new Set(made).size).toBe(100);
});
