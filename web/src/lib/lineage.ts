/** Lineage of a cycle's model as a graph: chunk → training → adapter → evaluation → gate, and the merged model. Pure. */
import type { CycleView, ModelVersionView } from "../api/schema";
import { gateOf, outcome } from "./campaign";
import { number } from "./format";

export interface Link {
  id: string;
  title: string;
  text: string;
  more?: string;
  /** The task on this server that created it. */
  task?: string;
  tone?: "good" | "faint";
  depends_on: string[];
}

interface Rows {
  task_id?: string;
  digest?: string;
  rows?: number;
}
interface Candidate {
  ref: string;
  name: string;
  form: string;
  on_fleet: boolean;
}
interface Measured {
  task_id: string;
  metrics: Record<string, { value: number; low: number | null; high: number | null }>;
}

const DIGITS = 10;

/** Results of a cycle's steps so far; later steps add to them. */
export function lineageOf(cycle: CycleView, versions: readonly ModelVersionView[]): Link[] {
  const left = (name: string) => outcome(cycle.steps, name);
  const [data, order, waited, measured, merged] = ["data", "submit", "wait", "evaluate", "merge"].map(left);
  const chunk = data?.chunk as Rows | undefined;
  if (!data || !chunk) return [];
  const found: Link[] = [
    {
      id: "chunk",
      title: `Chunk ${Number(data.index) + 1} of ${data.chunks}`,
      text: rows(chunk),
      more: brief(chunk.digest),
      task: chunk.task_id,
      depends_on: [],
    },
  ];
  if (order?.ticket) found.push(...trained(order));
  const candidates = (waited?.candidates ?? []) as Candidate[];
  const evaluations = (measured?.candidates ?? []) as (Measured | null)[];
  const chosen = (left("select").candidate as Candidate | undefined)?.ref;
  const test = data.test as Rows | undefined;
  if (test && evaluations.length > 0)
    found.push({
      id: "test",
      title: "Eval rows",
      text: rows(test),
      more: brief(test.digest),
      task: test.task_id,
      depends_on: [],
    });
  candidates.forEach((each, index) => {
    const tone = chosen === undefined || chosen === each.ref ? undefined : "faint";
    found.push({
      id: `candidate-${index}`,
      title: each.form === "adapter" ? "Adapter" : "Model",
      text: each.name,
      task: each.on_fleet ? each.ref : undefined,
      tone,
      depends_on: ["order"],
    });
    const evaluation = evaluations[index];
    if (evaluation) found.push(evaluated(evaluation, index, String(measured?.metric ?? "loss"), tone));
  });
  const best = Math.max(
    0,
    candidates.findIndex((each) => each.ref === chosen),
  );
  if (merged && Object.keys(merged).length > 0)
    found.push({
      id: "merged",
      title: "Merged model",
      text: String(merged.url ?? merged.artifact_id ?? ""),
      more: brief(merged.digest),
      task: text(merged.task_id),
      depends_on: [`candidate-${best}`],
    });
  return [...found, ...decided(cycle, versions, best)];
}

function trained(order: Record<string, unknown>): Link[] {
  const base = order.base as { repo: string; version: number | null; task_id: string | null; digest: string | null };
  return [
    {
      id: "base",
      title: base.version == null ? "Base model" : `Version ${base.version}`,
      text: base.repo,
      more: brief(base.digest),
      task: text(base.task_id),
      depends_on: [],
    },
    {
      id: "order",
      title: "Training",
      text: String(order.ticket),
      more: `at ${order.provider}`,
      task: order.provider === "local" ? String(order.ticket) : undefined,
      depends_on: ["chunk", "base"],
    },
  ];
}

function evaluated(evaluation: Measured, index: number, metric: string, tone: Link["tone"]): Link {
  const found = evaluation.metrics[metric];
  const sure = found?.low != null && found.high != null;
  return {
    id: `evaluation-${index}`,
    title: "Evaluation",
    text: `${metric} ${number(found?.value)}`,
    more: sure ? `[${number(found.low)}, ${number(found.high)}]` : undefined,
    task: evaluation.task_id,
    tone,
    depends_on: [`candidate-${index}`, "test"],
  };
}

function decided(cycle: CycleView, versions: readonly ModelVersionView[], best: number): Link[] {
  const gate = gateOf(cycle);
  if (!gate) return [];
  const [against, gain] = Object.entries(gate.against).at(-1) ?? [];
  const found: Link[] = [
    {
      id: "gate",
      title: gate.passed ? "Gate passed" : "Gate not passed",
      text: gain ? `${number(gain.value)} better` : gate.reason,
      more: against && `than the ${against}`,
      tone: gate.passed ? "good" : undefined,
      depends_on: [`evaluation-${best}`],
    },
  ];
  const version = versions.find((each) => each.cycle === cycle.number);
  if (version)
    found.push({
      id: "version",
      title: `Version ${version.version}`,
      text: version.stage,
      more: version.form,
      task: text(version.location.task_id),
      tone: version.stage === "promoted" ? "good" : undefined,
      depends_on: ["merged", "gate"],
    });
  return found;
}

function rows({ rows: count }: Rows): string {
  return count === undefined ? "" : `${number(count)} rows`;
}

function text(value: unknown): string | undefined {
  return typeof value === "string" && value ? value : undefined;
}

function brief(digest: unknown): string | undefined {
  return text(digest)?.slice(0, DIGITS);
}
