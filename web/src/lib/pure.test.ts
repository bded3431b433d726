import { expect, test } from "vitest";
import { bytes, duration, number } from "./format";
import { levelOf, lines } from "./log";

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

test("a log shows what a terminal would", () => {
  expect(lines("one\n 10%\r 90%\r\ntwo\n")).toEqual(["one", " 90%", "two"]);
  expect(["Traceback (most recent call last):", "ValueError: no", "x WARNING y", "fine"].map(levelOf)).toEqual([
    "error",
    "error",
    "warning",
    "",
  ]);
});
