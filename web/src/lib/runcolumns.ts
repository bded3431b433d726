/** Columns of the runs table, and the names of what they show. Pure. */

import type { TaskView } from "../api/schema";
import { metricName } from "./metrics";
import { plain } from "./words";

export interface RunColumn {
  id: string;
  label: string;
  /** Width in the grid, in CSS. */
  width: string;
  /** Whether the server sorts by it, under the same name. */
  sorts: boolean;
  /** Aligned right. */
  numeric?: boolean;
}

const column = (id: string, label: string, width: string, more?: Partial<RunColumn>): RunColumn => ({
  id,
  label,
  width,
  sorts: true,
  ...more,
});

/** Columns besides metrics, in their order. */
export const FIXED: readonly RunColumn[] = [
  column("name", "Name", "minmax(150px, 2.4fr)"),
  column("status", "Status", "minmax(150px, 1.4fr)"),
  column("model", "Model", "minmax(84px, 1fr)"),
  column("dataset", "Dataset", "minmax(80px, 1fr)"),
  column("method", "Method", "minmax(88px, 0.8fr)"),
  column("curve", "Loss curve", "76px", { sorts: false }),
  column("latest.loss", "Loss", "62px", { numeric: true }),
  column("best.eval_loss", "Best eval loss", "98px", { numeric: true }),
  column("ran", "Duration", "76px", { numeric: true }),
  column("created", "Age", "54px", { numeric: true }),
  column("tags", "Tags", "minmax(70px, 1fr)", { sorts: false }),
  column("kind", "Kind", "104px"),
  column("worker", "Worker", "minmax(90px, 0.8fr)"),
  column("owner", "Owner", "96px"),
  column("workflow", "Workflow", "minmax(110px, 1fr)", { sorts: false }),
  column("finished", "Ended", "132px", { numeric: true }),
  column("notes", "Notes", "minmax(140px, 1.4fr)", { sorts: false }),
];

export const DEFAULT_COLUMNS: readonly string[] = FIXED.slice(0, 11).map(({ id }) => id);
/** Columns on a phone, which fit without scrolling sideways. */
const ON_PHONE: readonly RunColumn[] = [
  column("name", "Name", "minmax(0, 1.5fr)"),
  column("status", "Status", "minmax(0, 1.1fr)"),
  column("best.eval_loss", "Best eval", "78px", { numeric: true }),
];

const METRIC = /^(latest|best)\.[^"\\]{1,256}$/;

/** Whether the server sorts by it. */
export function isSort(value: string): boolean {
  return METRIC.test(value) || FIXED.some(({ id, sorts }) => sorts && id === value);
}

/** The chosen columns; the name is always there, unknown ones are left out. */
export function columnsOf(chosen: readonly string[], phone: boolean): RunColumn[] {
  if (phone) return [...ON_PHONE];
  return ["name", ...chosen.filter((id) => id !== "name")].flatMap(
    (id) => FIXED.find((each) => each.id === id) ?? metricColumn(id) ?? [],
  );
}

function metricColumn(id: string): RunColumn | undefined {
  if (!METRIC.test(id)) return undefined;
  const [group = "", name = ""] = split(id);
  return column(id, group === "best" ? `Best ${lowered(metricName(name))}` : metricName(name), "116px", {
    numeric: true,
  });
}

/** Metrics that the loaded runs have and that no fixed column shows, as columns: the latest and the best value. */
export function metricColumns(tasks: readonly TaskView[], chosen: readonly string[]): RunColumn[] {
  const ids = new Set(chosen.filter((id) => METRIC.test(id)));
  for (const { glance } of tasks) {
    for (const name of Object.keys(glance?.latest ?? {})) ids.add(`latest.${name}`);
    for (const name of Object.keys(glance?.best ?? {})) ids.add(`best.${name}`);
  }
  return [...ids]
    .filter((id) => !FIXED.some((each) => each.id === id))
    .flatMap((id) => metricColumn(id) ?? [])
    .sort((a, b) => a.label.localeCompare(b.label));
}

/** The value of a metric column. */
export function metricOf({ glance }: TaskView, id: string): number | string | undefined {
  const [group, name = ""] = split(id);
  return group === "best" ? glance?.best?.[name] : glance?.latest?.[name];
}

function split(id: string): [string, string] {
  const at = id.indexOf(".");
  return [id.slice(0, at), id.slice(at + 1)];
}

const lowered = (text: string) => text.charAt(0).toLowerCase() + text.slice(1);

const HIGHER = ["accuracy", "exact_match", "reward", "f1", "bleu", "rouge", "score", "win_rate", "margins"];
const LOWER = ["loss", "perplexity", "ppl", "error_rate"];

/** The direction of a metric, as on the server; null if it has none, such as a learning rate. */
export function lowerIsBetter(name: string): boolean | null {
  if (HIGHER.some((part) => name.includes(part))) return false;
  return LOWER.some((part) => name.includes(part)) ? true : null;
}

/** Whether the first click on a column sorts upwards: names from A, losses from the best one. */
export function sortsUpFirst(id: string): boolean {
  if (METRIC.test(id)) return lowerIsBetter(id) ?? false;
  return !["created", "ran", "finished"].includes(id);
}

const TRAINED: Record<string, string> = { full: "full", lora: "LoRA", qlora: "QLoRA" };

/** `qlora_sft` → `SFT · QLoRA`. */
export function methodName(method: string | null | undefined): string {
  if (!method) return "";
  const [trained, trainer] = [method.slice(0, method.indexOf("_")), method.slice(method.indexOf("_") + 1)];
  const named = TRAINED[trained];
  return named ? `${trainer === "reward" ? "Reward" : trainer.toUpperCase()} · ${named}` : plain(method);
}

/** The last part of a hub id or a path: `Qwen/Qwen2.5-0.5B` → `Qwen2.5-0.5B`. */
export function shortName(source: string | null | undefined): string {
  return (source ?? "").replace(/^builtin:/, "").replace(/^.*\/(?=.)/, "");
}
