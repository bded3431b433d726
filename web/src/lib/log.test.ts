import { expect, test } from "vitest";
import { allLines, appended, NOTHING, prepended } from "./log";

const texts = (held: typeof NOTHING) => allLines(held).map((line) => line.text);

test("chunks that end within a line are joined", () => {
  const pieces = ["one\ntw", "o\n 10%\r", " 90%\r\nthr"];
  const held = pieces.reduce((all, piece) => appended(all, piece, 100), NOTHING);
  expect(texts(held)).toEqual(["one", "two", " 90%", "thr"]);
  expect(texts(appended(held, "ee\n", 100))).toEqual(["one", "two", " 90%", "three"]);
});

test("earlier text is prepended, also within a line", () => {
  const held = appended(NOTHING, "o\nthree\n", 100);
  expect(texts(prepended(held, "one\ntw"))).toEqual(["one", "two", "three"]);
  expect(texts(prepended(appended(NOTHING, "wo", 100), "one\nt"))).toEqual(["one", "two"]);
});

test("at most the limit is held, and the dropped lines are counted", () => {
  const text = Array.from({ length: 30 }, (_, at) => `${at}\n`).join("");
  const held = appended(NOTHING, text, 10);
  expect(texts(held)).toHaveLength(10);
  expect(held.dropped).toBe(20);
  expect(texts(held).at(-1)).toBe("29");
  expect(appended(NOTHING, "x".repeat(1_000_000), 10).rest.length).toBeLessThan(100_000);
});
