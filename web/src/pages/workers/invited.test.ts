import { expect, test } from "vitest";
import { asked, NAME } from "./invited";

test("what is left empty the machine chooses", () => {
  expect(asked("  ", " , ")).toMatchObject({ worker_id: null, tags: null });
});

test("tags are separated by commas or blanks", () => {
  expect(asked(" gpu-3 ", "a100, lab  big,")).toEqual({
    worker_id: "gpu-3",
    tags: ["a100", "lab", "big"],
    expires_s: 3600,
  });
});

test("a name is held to the server's rule by the browser, which reads patterns with the v flag", () => {
  const rule = new RegExp(`^(?:${NAME})$`, "v");
  expect(["gpu-3", "a.b_c"].every((name) => rule.test(name))).toBe(true);
  expect(["-gpu", "a b", "", "x".repeat(65)].some((name) => rule.test(name))).toBe(false);
});
