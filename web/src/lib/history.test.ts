import { expect, test } from "vitest";
import type { AttemptView, EventView } from "../api/schema";
import { byAttempt } from "./history";

const at = (seconds: number) => new Date(1_700_000_000_000 + seconds * 1000).toISOString();
const attempt = (number: number, offered: number) => ({ number, offered_at: at(offered) }) as AttemptView;
const event = (id: number, seconds: number, kind: string) => ({ id, at: at(seconds), kind }) as EventView;

test("events belong to the attempt that was offered last, and adjacent checkpoints are one entry", () => {
  const events = [
    event(1, 0, "task.queued"),
    event(2, 10, "task.dispatched"),
    event(3, 12, "checkpoint.saved"),
    event(4, 13, "checkpoint.saved"),
    event(5, 14, "task.retrying"),
    event(6, 20, "task.dispatched"),
  ];
  const groups = byAttempt([attempt(1, 10), attempt(2, 20)], events);
  expect(
    groups.map((group) => [group.attempt?.number, group.entries.map((entry) => entry.map(({ id }) => id))]),
  ).toEqual([
    [2, [[6]]],
    [1, [[5], [3, 4], [2]]],
    [undefined, [[1]]],
  ]);
});

test("an attempt without events is listed", () => {
  expect(byAttempt([attempt(1, 10)], []).map((group) => group.attempt?.number)).toEqual([1]);
});
