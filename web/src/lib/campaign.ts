/** What the steps of a campaign's cycle have left, read for people. Pure. */
import type { ActivityView, CampaignView, CycleView, ModelVersionView, StepView } from "../api/schema";
import { bytes, duration, number } from "./format";
import { plain } from "./words";

export const STEPS = [
  "data",
  "upload",
  "submit",
  "wait",
  "evaluate",
  "select",
  "merge",
  "gate",
  "publish",
  "record",
  "sleep",
] as const;

/** How a text of the server begins that says what a person has to type. */
const NEEDS_YOU = "Needs you: ";

type Outcome = Record<string, unknown>;

export interface Interval {
  value: number;
  low: number | null;
  high: number | null;
}

export interface Gain extends Interval {
  passed: boolean;
  why: string;
}

export interface Verdict {
  passed: boolean;
  reason: string;
  against: Record<string, Gain>;
}

/** What a step has left; empty until it is done. */
export function outcome(steps: readonly StepView[], name: string): Outcome {
  return (steps.find((each) => each.name === name && each.status === "done")?.outcome ?? {}) as Outcome;
}

export function verdictOf(cycle: CycleView): Verdict | null {
  const found = outcome(cycle.steps, "gate");
  return typeof found.passed === "boolean" ? (found as unknown as Verdict) : null;
}

/** The metric that decides, as it was measured of the chosen candidate, the base and the promoted model. */
export function measuredOf(
  evaluation: Outcome,
  chosen: string | undefined,
): Record<"chosen" | "base" | "promoted", Interval | null> {
  const metric = String(evaluation.metric ?? "loss");
  const candidates = (evaluation.candidates ?? []) as (Outcome | null)[];
  const candidate =
    candidates.find((each) => each?.task_id === chosen) ?? (candidates.length === 1 ? candidates[0] : null);
  const of = (model: unknown) => intervalOf(model as Outcome | null, metric);
  return { chosen: of(candidate), base: of(evaluation.base), promoted: of(evaluation.promoted) };
}

function intervalOf(measured: Outcome | null | undefined, metric: string): Interval | null {
  const found = (measured?.metrics as Record<string, Interval> | undefined)?.[metric];
  return found && typeof found.value === "number" ? found : null;
}

/** The task that measured the candidate that became this version. */
export function evaluationTask(version: ModelVersionView): string | undefined {
  const found = version.lineage.evaluation;
  return typeof found === "string" ? found : undefined;
}

/** `1,000 of 2,000 rows`; empty where nothing is counted. */
export function amount({ done = 0, total, unit }: ActivityView): string {
  if (!unit) return "";
  const text = unit === "bytes" ? bytes : (count: number) => number(count);
  return `${text(done)}${total ? ` of ${text(total)}` : ""}${unit === "bytes" ? "" : ` ${unit}`}`;
}

/** What a campaign does now, or why it does nothing. */
export function doing(campaign: CampaignView, now: number): string {
  const { cycle } = campaign;
  if (campaign.status !== "active") return campaign.reason ?? "";
  if (cycle?.status === "running") {
    const failed = `${cycle.step} failed ${cycle.tries} times`;
    // What a person has to type comes first: a cell of a table is cut.
    if (cycle.error)
      return cycle.error.startsWith(NEEDS_YOU) ? `${cycle.error} (${failed})` : `${failed}: ${cycle.error}`;
    const told = cycle.activity ? `${plain(cycle.activity.what)} ${amount(cycle.activity)}`.trim() : cycle.waiting;
    const check = secondsTo(cycle.retry_at, now);
    const next = cycle.waiting && check > 0 ? `; next check in ${duration(check)}` : "";
    return told ? `${cycle.step}: ${told}${next}` : cycle.step;
  }
  const left = secondsTo(campaign.next_at, now);
  return left > 0 ? `idle; next cycle starts in ${duration(left)}` : "starting the next cycle";
}

/** Seconds from now to a moment; 0 if there is none. */
export function secondsTo(at: string | null | undefined, now: number): number {
  return at ? (Date.parse(at) - now) / 1000 : 0;
}

/** Seconds that a cycle has taken, or takes up to now. */
export function tookSeconds(from: string, to: string | null | undefined, now: number): number {
  return Math.max(0, ((to ? Date.parse(to) : now) - Date.parse(from)) / 1000);
}
