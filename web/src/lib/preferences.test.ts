import { expect, test } from "vitest";
import { jsonLines, preferencesOf, type Rated, rated } from "./preferences";
import { partsOf, questionOf } from "./prompt";
import { FIRST_SAMPLING, PRESETS, presetOf, requestOf } from "./sampling";

const turn = (answers: Rated["answers"], part: Partial<Rated> = {}): Rated => ({
  id: "1",
  model: "sums",
  plain: true,
  messages: [{ role: "user", content: "2 + 2?" }],
  answers,
  ...part,
});

test("a good and a bad answer to one message are a pair", () => {
  const rows = preferencesOf([turn([{ text: "4", rating: 1 }, { text: "5", rating: -1 }, { text: "6" }])]);
  expect(rows).toEqual([{ prompt: "2 + 2?", chosen: "4", rejected: "5" }]);
  expect(jsonLines(rows)).toBe('{"prompt":"2 + 2?","chosen":"4","rejected":"5"}\n');
});

test("with one rating, the other answers are worse or better", () => {
  const rejected = (answers: Rated["answers"]) => preferencesOf([turn(answers)]).map((each) => each.rejected);
  expect(rejected([{ text: "4", rating: 1 }, { text: "5" }, { text: " 5 " }])).toEqual(["5"]);
  expect(rejected([{ text: "4" }, { text: "5", rating: -1 }])).toEqual(["5"]);
  expect(rejected([{ text: "4", rating: 1 }])).toEqual([]);
  expect(rejected([{ text: "4", rating: 1 }, { text: "4" }, { text: " " }])).toEqual([]);
});

test("chats with a template, and longer ones, are lists of messages in every row", () => {
  const chat = turn([{ text: "4", rating: 1 }, { text: "5" }], {
    id: "2",
    plain: false,
    messages: [
      { role: "system", content: "Be brief." },
      { role: "user", content: "2 + 2?" },
    ],
  });
  const rows = preferencesOf([turn([{ text: "4", rating: 1 }, { text: "5" }]), chat]);
  expect(rows[0]?.prompt).toEqual([{ role: "user", content: "2 + 2?" }]);
  expect(rows[1]).toEqual({
    prompt: chat.messages,
    chosen: [{ role: "assistant", content: "4" }],
    rejected: [{ role: "assistant", content: "5" }],
  });
});

test("a rating that is taken back is gone", () => {
  const one = turn([{ text: "4", rating: 1 }]);
  expect(rated([], one)).toEqual([one]);
  expect(rated([one], turn([{ text: "4" }]))).toEqual([]);
});

test.each([
  ["<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"],
  ["<|system|>Be brief.<|end|><|user|>Hi<|end|><|assistant|>"],
  [
    "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
  ],
])("a rendered prompt is read as its messages: %s", (prompt) => {
  expect(partsOf(prompt)).toEqual([
    { role: "system", text: "Be brief." },
    { role: "user", text: "Hi" },
  ]);
  expect(questionOf(prompt)).toBe("Hi");
});

test("plain prompts stay as they are", () => {
  expect(questionOf("If a < b, is <b> > a?\n")).toBe("If a < b, is <b> > a?");
  expect(questionOf("<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n")).toBe("Hi");
  expect(questionOf("<s>[INST] Hi [/INST]")).toBe("Hi");
});

test("presets set temperature and top-p; an empty field is not sent", () => {
  expect(presetOf(FIRST_SAMPLING)).toBe("balanced");
  expect(presetOf({ ...FIRST_SAMPLING, ...PRESETS.precise })).toBe("precise");
  expect(presetOf({ ...FIRST_SAMPLING, temperature: "0.5" })).toBeNull();
  expect(requestOf({ ...FIRST_SAMPLING, ...PRESETS.precise, seed: "7" })).toEqual({
    temperature: 0,
    max_tokens: 512,
    seed: 7,
  });
});
