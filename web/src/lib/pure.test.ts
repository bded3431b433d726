import { expect, test } from "vitest";
import type { TaskView } from "../api/schema";
import { bytes, duration, number } from "./format";
import { allLines, appended, levelOf, NOTHING } from "./log";
import { grouped, order } from "./tasklist";

test("numbers are short and keep significant digits", () => {
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
  expect([0, 4.23, 59.6, 200, 7500, 100_000].map(duration)).toEqual(["0s", "4.2s", "1m", "3m 20s", "2h 5m", "1d 3h"]);
});

test("a log shows what a terminal would", () => {
  expect(allLines(appended(NOTHING, "one\n 10%\r 90%\r\ntwo\n", 9)).map((line) => line.text)).toEqual([
    "one",
    " 90%",
    "two",
  ]);
  expect(["Traceback (most recent call last):", "ValueError: no", "x WARNING y", "fine"].map(levelOf)).toEqual([
    "error",
    "error",
    "warning",
    "",
  ]);
});

test("a sort order uses the server's names", () => {
  expect(order(undefined, undefined)).toBeUndefined();
  expect(order(undefined, true)).toBe("created");
  expect(order("ran", undefined)).toBe("-duration");
  expect(order("name", true)).toBe("name");
});

test("tasks of a workflow are grouped; only the last group may have more", () => {
  const task = (id: string, workflow_id: string) => ({ id, workflow_id, workflow_name: null }) as TaskView;
  const rows = grouped([task("a", "w1"), task("b", "w1"), task("c", "w2")], true);
  expect(rows.map((row) => ("task" in row ? row.task.id : [row.name, row.tasks.length, row.more]))).toEqual([
    ["w1", 2, false],
    "a",
    "b",
    ["w2", 1, true],
    "c",
  ]);
});
