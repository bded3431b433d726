import { describe, expect, test } from "vitest";
import { staleBy } from "../api/news";
import type { CampaignView, CycleView, EventView, ModelVersionView, StepView } from "../api/schema";
import { doing, gateOf, measuredOf } from "./campaign";
import { lineageOf } from "./lineage";

const AT = "2026-01-01T00:00:00Z";
const done = (name: StepView["name"], outcome: Record<string, unknown>): StepView => ({
  name,
  status: "done",
  outcome,
  begun_at: AT,
  finished_at: AT,
});
const measured = (task_id: string, value: number) => ({
  task_id,
  metrics: { loss: { value, low: value - 0.1, high: value + 0.1 } },
});

const DATA = done("data", {
  chunk: { task_id: "task-chunk", rows: 64, digest: "c".repeat(64) },
  test: { task_id: "task-rows", rows: 100, digest: "d".repeat(64) },
  index: 4,
  chunks: 30,
});
const ORDER = done("submit", {
  provider: "local",
  ticket: "task-train",
  base: { repo: "org/base", version: null, task_id: null, digest: null },
});
const STEPS = [
  DATA,
  ORDER,
  done("wait", {
    candidates: [
      { ref: "task-train", name: "a", form: "adapter", on_fleet: true },
      { ref: "org/b", name: "b", form: "adapter", on_fleet: false },
    ],
  }),
  done("evaluate", {
    metric: "loss",
    base: measured("task-base", 6),
    promoted: null,
    candidates: [measured("task-a", 3), measured("task-b", 4)],
  }),
  done("select", { candidate: { ref: "task-train" }, evaluation: { task_id: "task-a" }, loss: 3 }),
  done("merge", { task_id: "task-merge", artifact_id: "art-1", digest: "e".repeat(64), form: "model" }),
  done("gate", {
    passed: true,
    reason: "It is better.",
    against: { base: { value: 3, low: 2, high: 4, passed: true, why: "better than" } },
  }),
];
const cycle = (steps: StepView[]) => ({ number: 4, step: "gate", status: "running", steps }) as CycleView;
const version = {
  version: 5,
  cycle: 4,
  stage: "promoted",
  form: "model",
  location: { task_id: "task-merge" },
} as unknown as ModelVersionView;

describe("the lineage of a cycle", () => {
  test("grows with its steps", () => {
    expect(lineageOf(cycle([]), [])).toEqual([]);
    expect(lineageOf(cycle([DATA]), []).map((each) => each.id)).toEqual(["chunk"]);
    expect(lineageOf(cycle([DATA, ORDER]), []).map((each) => each.id)).toEqual(["chunk", "base", "order"]);
  });

  test("links the rows to the version, and each node to its task", () => {
    const found = new Map(lineageOf(cycle(STEPS), [version]).map((each) => [each.id, each]));
    expect(found.get("chunk")?.task).toBe("task-chunk");
    expect(found.get("order")?.task).toBe("task-train");
    expect(found.get("candidate-0")?.task).toBe("task-train");
    expect(found.get("candidate-1")?.task).toBeUndefined();
    expect(found.get("candidate-1")?.tone).toBe("faint");
    expect(found.get("evaluation-0")).toMatchObject({ task: "task-a", text: "loss 3", more: "[2.9, 3.1]" });
    expect(found.get("merged")?.depends_on).toEqual(["candidate-0"]);
    expect(found.get("gate")?.depends_on).toEqual(["evaluation-0"]);
    expect(found.get("version")?.depends_on).toEqual(["merged", "gate"]);
    for (const each of found.values()) for (const before of each.depends_on) expect(found.has(before)).toBe(true);
  });

  test("of a run at a provider links to no local task", () => {
    const order = done("submit", { ...ORDER.outcome, provider: "gradients", ticket: "t-1" });
    expect(lineageOf(cycle([DATA, order]), []).find((each) => each.id === "order")?.task).toBeUndefined();
  });
});

test("the chosen candidate is compared with base and promoted", () => {
  const evaluation = STEPS[3]?.outcome ?? {};
  expect(measuredOf(evaluation, "task-b").chosen?.value).toBe(4);
  expect(measuredOf(evaluation, "task-b").base?.value).toBe(6);
  expect(measuredOf(evaluation, undefined).chosen).toBeNull();
  expect(gateOf(cycle(STEPS))?.against.base?.low).toBe(2);
  expect(gateOf(cycle([DATA]))).toBeNull();
});

test("the activity of a campaign is one short text", () => {
  const now = Date.parse(AT);
  const at = (more: object) => ({ status: "active", cycle: null, next_at: null, ...more }) as unknown as CampaignView;
  const running = { status: "running", step: "wait", tries: 0, error: null, waiting: "task-1 is queued" };
  const activity = { what: "training", done: 3, total: 8, unit: "steps", at: AT };
  expect(doing(at({ cycle: running }), now)).toBe("wait: task-1 is queued");
  expect(doing(at({ cycle: { ...running, activity } }), now)).toBe("wait: training 3 of 8 steps");
  const later = { ...running, retry_at: "2026-01-01T01:00:00Z" };
  expect(doing(at({ cycle: later }), now)).toBe("wait: task-1 is queued; next check in 1h");
  const needs = "Action required: `tunefleet campaign retry daily`. The job was lost.";
  expect(doing(at({ cycle: { ...running, tries: 2, error: needs } }), now)).toBe(`${needs} (wait failed 2 times)`);
  expect(doing(at({ next_at: "2026-01-01T01:00:00Z" }), now)).toBe("idle; next cycle starts in 1h");
  expect(doing(at({ status: "held", reason: "No budget is left." }), now)).toBe("No budget is left.");
});

test("an event makes the queries of its federation or campaign stale, under each name", () => {
  const event = (kind: string, data: object) => ({ id: 1, at: AT, kind, data }) as EventView;
  const federation = staleBy(event("federation.version", { federation: "fed-1", number: 7 }));
  expect(federation).toContainEqual(["federations"]);
  expect(federation).toContainEqual(["federation", "fed-1"]);
  expect(federation).toContainEqual(["federation-updates", "7"]);
  const campaign = staleBy(event("campaign.step", { campaign: "camp-1", name: "problems" }));
  expect(campaign).toContainEqual(["campaign", "problems"]);
  expect(campaign).toContainEqual(["campaign-log", "camp-1"]);
  expect(staleBy(event("task.completed", {}))).toEqual([]);
});
