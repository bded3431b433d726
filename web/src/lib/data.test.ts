import { expect, test } from "vitest";
import { changed, commonFields, precision, quantized, trainingTasksIn } from "./common";
import { firstSentence, titleOf } from "./gallery";
import { manifestDigest } from "./manifest";
import { AnswerError, eventsIn, pieceOf } from "./stream";
import { trainingDocument } from "./traindoc";

const LORA = `# about
metadata: {name: one}
spec:
  taskType: lora_sft # the kind
  model:
    source: {identifier: m}
  lora: # the adapter
    r: 16
    target_modules: [q_proj, v_proj]
  training:
    max_steps: 80 # few
    learning_rate: 3e-3
`;

function one(text: string) {
  const [found] = trainingTasksIn(text);
  if (!found) throw new Error("no training");
  return found;
}

test("changing a field keeps comments and other fields", () => {
  expect(changed(LORA, ["spec", "training", "max_steps"], 90)).toBe(LORA.replace("80", "90"));
  expect(changed(LORA, ["spec", "training", "max_steps"], null)).not.toContain("max_steps");
  const fields = commonFields(LORA, one(LORA));
  expect(fields.find((field) => field.label === "Learning rate")?.value).toBe("3e-3");
  expect(fields.find((field) => field.label === "LoRA targets")?.value).toBe("q_proj, v_proj");
  expect(trainingTasksIn("spec: [broken")).toEqual([]);
});

test("bits are written in one place, with their dependent fields", () => {
  expect(precision(LORA, one(LORA))).toBe("");
  const four = quantized(LORA, one(LORA), "4");
  expect(four).toContain("quantization:\n    load_in_4bit: true\n");
  expect(commonFields(four, one(four)).map((field) => field.label)).toContain("Data type");
  const fp4 = changed(four, ["spec", "quantization", "quant_type"], "fp4");
  const eight = quantized(fp4, one(fp4), "8");
  expect(eight).toContain("load_in_8bit: true");
  expect(eight).not.toMatch(/4bit|fp4/);
  expect(quantized(eight, one(eight), "")).toBe(LORA);
  const other = LORA.replace(
    "source: {identifier: m}",
    "source: {identifier: m}\n    transformers: {load_in_4bit: true}",
  );
  expect(precision(other, one(other))).toBe("4");
  expect(quantized(other, one(other), "")).toBe(LORA);
  const braces = LORA.replace(
    "training:\n    max_steps: 80 # few\n    learning_rate: 3e-3",
    "training: {max_steps: 80}",
  );
  expect(changed(braces, ["spec", "training", "max_steps"], 9)).toBe(braces.replace("80", "9"));
  expect(changed(braces, ["spec", "training", "batch_size"], 2)).toContain("batch_size: 2");
  const whole = LORA.replace("lora_sft", "sft").replace(/ {2}lora:[\s\S]*?\]\n/, "");
  expect(precision(whole, one(whole))).toBeNull();
});

test("each training stage has its own form", () => {
  const text = `spec:\n  stages:\n    - {name: a, spec: {taskType: echo}}\n    - name: b\n      spec:\n        taskType: sft\n`;
  expect(trainingTasksIn(text)).toEqual([{ name: "b", kind: "sft", at: ["spec", "stages", 1, "spec"] }]);
  const path = commonFields(text, one(text)).find((field) => field.label === "Steps")?.path ?? [];
  expect(changed(text, path, 5)).toContain("max_steps: 5");
});

test("a dataset replaces an example's data", () => {
  const dataset = { reference: "rows.jsonl", name: "rows.jsonl", rows: 100, recognised: "prompts and responses" };
  const pair = { prompt_column: "question", response_column: "answer" };
  const text = trainingDocument(LORA, dataset, { kind: "lora_sft", data: pair });
  expect(text).toContain("artifact: rows.jsonl\n    prompt_column: question");
  expect(text).toContain("fraction: 0.1");
  expect(text).toContain("# few");
  const few = trainingDocument(LORA, { ...dataset, rows: 3 }, { kind: "lora_sft", data: pair });
  expect(few).not.toContain("fraction");
});

test("a response is read event by event, however the network splits it", () => {
  const { events, rest } = eventsIn('data: {"a":1}\r\n\r\n: a comment\n\ndata: [DONE]\n\ndata: {"b"');
  expect(events).toEqual(['{"a":1}', "[DONE]"]);
  expect(rest).toBe('data: {"b"');
  expect(pieceOf('{"choices":[{"index":0,"delta":{"content":"x"}}]}')?.text).toBe("x");
  expect(pieceOf("[DONE]")).toBeNull();
  expect(() => pieceOf('{"error":{"message":"It went.","hint":"Ask again."}}')).toThrow(AnswerError);
});

test("an artifact's digest equals the server's", () => {
  // tunefleet.artifacts.manifest_digest([FileEntry(path="naïve 🙂.jsonl", digest="ab" * 32, size_bytes=7)])
  expect(manifestDigest([{ path: "naïve 🙂.jsonl", digest: "ab".repeat(32), size_bytes: 7 }])).toBe(
    "f6110a72e9b47ef00ac35f4a6cc84cc73fa897fbeacdd588beab6b89282d1db4",
  );
});

test("examples have titles and one sentence", () => {
  expect(firstSentence("Makes a thing; in two parts. More.")).toBe("Makes a thing.");
  expect([titleOf("dpo"), titleOf("brand_new")]).toEqual(["Preferences (DPO)", "Brand new"]);
});
