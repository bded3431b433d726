import { expect, test } from "vitest";
import { changed, commonFields } from "./common";
import { bytes, duration, number } from "./format";
import { levelOf, lines } from "./log";
import { firstSentence } from "./templates";

test("numbers are short and keep what matters", () => {
  expect([0, 0.00007, 0.003, 2.55123, 1234.5, 12_000_000].map(number)).toEqual([
    "0",
    "7.00e-5",
    "0.003",
    "2.551",
    "1,235",
    "1.20e7",
  ]);
  expect(number("NaN")).toBe("NaN");
  expect([512, 3_011_580, 25_276_502_016].map(bytes)).toEqual(["512 B", "2.9 MiB", "23.5 GiB"]);
  expect([4.23, 59.6, 200, 7500, 100_000].map(duration)).toEqual([
    "4.2 s",
    "1 min",
    "3 min 20 s",
    "2 h 5 min",
    "1 d 3 h",
  ]);
});

test("a changed field leaves comments and the rest as they were", () => {
  const text = "# about\nspec:\n  training:\n    max_steps: 80 # few\n    learning_rate: 3e-3\n";
  expect(changed(text, ["spec", "training", "max_steps"], 90)).toBe(text.replace("80", "90"));
  expect(changed(text, ["spec", "training", "max_steps"], null)).not.toContain("max_steps");
  expect(commonFields(text).find((field) => field.label === "Learning rate")?.value).toBe("3e-3");
  expect(commonFields("spec: [broken")).toEqual([]);
});

test("a log shows what a terminal would", () => {
  expect(lines("one\n 10%\r 90%\r\ntwo\n")).toEqual(["one", " 90%", "two"]);
  expect(["Traceback (most recent call last):", "ValueError: no", "x WARNING y", "fine"].map(levelOf)).toEqual([
    "error",
    "error",
    "warning",
    "",
  ]);
});

test("a template's line is the first sentence of its comment", () => {
  expect(firstSentence("# Makes a thing; in\n# two parts. More.\n\napiVersion: x")).toBe("Makes a thing.");
});
