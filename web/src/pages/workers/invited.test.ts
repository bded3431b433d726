import { expect, test } from "vitest";
import { asked, NAME } from "./invited";

test("empty fields are left to the machine", () => {
  expect(asked("  ", " , ")).toMatchObject({ worker_id: null, tags: null });
});

test("tags are separated by commas or spaces", () => {
  expect(asked(" gpu-3 ", "a100, lab  big,")).toEqual({
    worker_id: "gpu-3",
    tags: ["a100", "lab", "big"],
    expires_s: 3600,
  });
});

test("the browser enforces the server's name rule, with the v flag", () => {
  const rule = new RegExp(`^(?:${NAME})$`, "v");
  expect(["gpu-3", "a.b_c"].every((name) => rule.test(name))).toBe(true);
  expect(["-gpu", "a b", "", "x".repeat(65)].some((name) => rule.test(name))).toBe(false);
});
