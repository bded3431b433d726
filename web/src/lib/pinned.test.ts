import { expect, test } from "vitest";
import { pinned } from "./pinned";

test("a task requires the worker, and nothing else in the file changes", () => {
  const text = "# first\nspec:\n  taskType: echo # why\n";
  expect(pinned(text, "lab-3")).toBe(`${text}  resources:\n    tags: [ lab-3 ]\n`);
});

test("each stage requires it", () => {
  const text =
    "spec:\n  stages:\n    - name: a\n      spec: {taskType: echo}\n    - name: b\n      spec: {taskType: echo}\n";
  expect(pinned(text, "lab-3").match(/lab-3/g)).toHaveLength(2);
});

test("an invalid file is unchanged", () => {
  expect(pinned("spec: [", "lab-3")).toBe("spec: [");
  expect(pinned("", "lab-3")).toBe("");
});
