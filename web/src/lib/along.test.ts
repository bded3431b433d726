import { expect, test } from "vitest";
import { inputsOf, type Submitted } from "./along";

const TASK: Submitted = {
  name: "one",
  spec: { taskType: "sft", data: { path: "rows.jsonl" }, sources: [{ path: "more.jsonl" }, { artifact: "pushed" }] },
  inputs: { "data.path": "aa", "sources.0.path": "bb", "sources.1.artifact": "cc" },
};
const document = (name: string, path: string) =>
  `metadata: {name: ${name}}\nspec:\n  taskType: sft\n  data: {path: ${path}}\n  sources: [{path: more.jsonl}, {artifact: pushed}]\n`;

test("files of the earlier task are uploaded with the new one, under its new name", () => {
  expect(inputsOf(document("two", "rows.jsonl"), [TASK])).toEqual({
    two: { "data.path": "aa", "sources.0.path": "bb" },
  });
});

test("a changed file path overrides the earlier upload", () => {
  expect(inputsOf(document("one", "other.jsonl"), [TASK])).toEqual({ one: { "sources.0.path": "bb" } });
  expect(inputsOf("spec: [", [TASK])).toEqual({});
});

test("each stage has its own files", () => {
  const stages = `spec:
  stages:
    - {name: first, spec: {data: {path: a}}}
    - {name: last, spec: {data: {path: b}}}
`;
  const earlier = ["first", "last"].map((name, at) => ({
    name,
    spec: { data: { path: "ab"[at] } },
    inputs: { "data.path": name },
  }));
  expect(inputsOf(stages, earlier)).toEqual({ first: { "data.path": "first" }, last: { "data.path": "last" } });
});
