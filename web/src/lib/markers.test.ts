import { expect, test } from "vitest";
import type { AttemptView, CheckpointView, EventView } from "../api/schema";
import { type Happened, markersOf } from "./markers";
import { type Point, placeOf } from "./series";

const at = (second: number) => new Date(Date.UTC(2026, 0, 1, 0, 0, second)).toISOString();
const points: Point[] = [1, 2, 3, 4].map((step) => ({
  step: 10 * step,
  at: at(step < 3 ? step : 100 + step),
  values: {},
}));
const happened: Happened = {
  checkpoints: [{ step: 20, at: at(2), best: true, eval_loss: 1.5 } as CheckpointView],
  events: [{ kind: "task.paused", at: at(3) } as EventView, { kind: "task.resumed", at: at(90) } as EventView],
  attempts: [
    { number: 1, worker_id: "a", accepted_at: at(0), reason: "paused" },
    { number: 2, worker_id: "a", accepted_at: at(91), reason: "worker_lost" },
    { number: 3, worker_id: "b", accepted_at: at(104) },
  ] as AttemptView[],
};

test("a pause stands where the steps stand still; the attempt after it is a resume, one after a failure a restart", () => {
  const found = markersOf(happened, points, placeOf(points, "step"));
  expect(found.map(({ kind, x }) => [kind, x])).toEqual([
    ["checkpoint", 20],
    ["pause", 20],
    ["resume", 20],
    ["restart", 40],
  ]);
  expect(found.map(({ label }) => label)).toEqual([
    "Checkpoint at step 20, eval loss 1.5 (best)",
    "Paused at step 20",
    "Resumed at step 20",
    "Attempt 3 after worker lost, on b, from step 40",
  ]);
});

test("on the time axis, a pause has a length", () => {
  const found = markersOf(happened, points, placeOf(points, "time"));
  expect(found.map(({ kind, x }) => [kind, x])).toEqual([
    ["checkpoint", 1],
    ["pause", 2],
    ["resume", 89],
    ["restart", 103],
  ]);
});

test("what happened before the first point is at the first step", () => {
  const attempts = [
    { number: 1, worker_id: "a", reason: "crashed" },
    { number: 2, worker_id: "a", accepted_at: at(0) },
  ];
  const found = markersOf(
    { checkpoints: [], events: [], attempts: attempts as AttemptView[] },
    points,
    placeOf(points, "step"),
  );
  expect(found.map(({ x }) => x)).toEqual([0]);
});
