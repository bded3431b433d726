/** Formats the results of a campaign's cycle steps. Pure. */
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

/** Prefix of server messages that require a command from the user. */
const NEEDS_YOU = "Action required: ";

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

export interface GateResult {
  passed: boolean;
  reason: string;
  against: Record<string, Gain>;
}

/** The result of a step; empty until the step is done. */
export function outcome(steps: readonly StepView[], name: string): Outcome {
  return (steps.find((each) => each.name === name && each.status === "done")?.outcome ?? {}) as Outcome;
}

export function gateOf(cycle: CycleView): GateResult | null {
  const found = outcome(cycle.steps, "gate");
  return typeof found.passed === "boolean" ? (found as unknown as GateResult) : null;
}

/** The deciding metric, measured for the chosen candidate, the base and the promoted model. */
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

/** The task that evaluated the candidate that became this version. */
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

/** Current activity of a campaign, or why it is idle. */
export function doing(campaign: CampaignView, now: number): string {
  const { cycle } = campaign;
  if (campaign.status !== "active") return campaign.reason ?? "";
  if (cycle?.status === "running") {
    const failed = `${cycle.step} failed ${cycle.tries} times`;
    // The command for the user comes first: a table cell is truncated.
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

/** Seconds until a time; 0 if there is none. */
export function secondsTo(at: string | null | undefined, now: number): number {
  return at ? (Date.parse(at) - now) / 1000 : 0;
}

/** Duration of a cycle in seconds, up to now if it is open. */
export function tookSeconds(from: string, to: string | null | undefined, now: number): number {
  return Math.max(0, ((to ? Date.parse(to) : now) - Date.parse(from)) / 1000);
}
