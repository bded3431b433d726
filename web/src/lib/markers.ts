/** What happened to a run, at its place on the axis of the charts. Pure. */
import type { AttemptView, CheckpointView, EventView } from "../api/schema";
import { number } from "./format";
import { atOrAfter, type Place, type Point } from "./series";
import { plain } from "./words";

export const MARKER_KINDS = ["checkpoint", "pause", "resume", "restart"] as const;
export type MarkerKind = (typeof MARKER_KINDS)[number];

export const MARKER_NAMES: Readonly<Record<MarkerKind, string>> = {
  checkpoint: "Checkpoints",
  pause: "Pauses",
  resume: "Resumes",
  restart: "Restarts",
};

export interface Marker {
  kind: MarkerKind;
  x: number;
  label: string;
}

export interface Happened {
  checkpoints: readonly CheckpointView[];
  /** `task.paused` and `task.resumed`. */
  events: readonly EventView[];
  attempts: readonly AttemptView[];
}

/** The markers of a run. Its steps stand still between two points: what happened there is at the earlier one. */
export function markersOf(
  { checkpoints, events, attempts }: Happened,
  points: readonly Point[],
  place: Place,
): Marker[] {
  const times = points.map((point) => Date.parse(point.at));
  const stepAt = (at: number) => points[atOrAfter(times, at + 1) - 1]?.step ?? 0;
  const found: Marker[] = [];
  const add = (kind: MarkerKind, step: number, at: string, label: string) => {
    const x = place(step, Date.parse(at));
    if (x !== null) found.push({ kind, x, label });
  };
  for (const { step, at, best, eval_loss } of checkpoints) {
    const loss = eval_loss == null ? "" : `, eval loss ${number(eval_loss)}`;
    add("checkpoint", step, at, `Checkpoint at step ${number(step)}${loss}${best ? " (best)" : ""}`);
  }
  for (const { kind, at } of events) {
    const step = stepAt(Date.parse(at));
    if (kind === "task.paused") add("pause", step, at, `Paused at step ${number(step)}`);
    if (kind === "task.resumed") add("resume", step, at, `Resumed at step ${number(step)}`);
  }
  attempts.forEach(({ number: count, accepted_at, worker_id }, at) => {
    const before = attempts[at - 1];
    // The attempt after a pause is already marked as a resume.
    if (!accepted_at || !before || before.reason === "paused") return;
    const step = stepAt(Date.parse(accepted_at));
    const why = before.reason ? ` after ${plain(before.reason)}` : "";
    add("restart", step, accepted_at, `Attempt ${count}${why}, on ${worker_id}, from step ${number(step)}`);
  });
  return found.sort((a, b) => a.x - b.x);
}
