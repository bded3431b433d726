/** Cells of the runs table. */
import type { TaskView } from "../../api/schema";
import { ago, duration, number, percent, ranSeconds, utcTime } from "../../lib/format";
import { methodName, metricOf, type RunColumn, shortName } from "../../lib/runcolumns";
import { plain } from "../../lib/words";
import { Bar, Sparkline, Status, Time } from "../../parts/bits";
import { useNow } from "../../parts/clock";

export function Cell({ column, task }: { column: RunColumn; task: TaskView }) {
  const text = textOf(column.id, task);
  const classes = ["cut", column.numeric && "num right", column.id !== "status" && "muted"].filter(Boolean).join(" ");
  return (
    <span className={classes} role="cell" title={titleOf(column.id, task) ?? text}>
      {text ?? <Content id={column.id} task={task} />}
    </span>
  );
}

/** Cells that are only text. */
function textOf(id: string, task: TaskView): string | undefined {
  switch (id) {
    case "model":
      return shortName(task.model);
    case "dataset":
      return shortName(task.dataset);
    case "method":
      return methodName(task.method);
    case "kind":
      return task.kind;
    case "worker":
      return task.worker_id ?? "";
    case "owner":
      return task.owner;
    case "workflow":
      return task.workflow_name ?? task.workflow_id;
    case "notes":
      return task.notes ?? "";
    default:
      return undefined;
  }
}

function titleOf(id: string, task: TaskView): string | undefined {
  if (id === "status") return task.why ?? task.error ?? undefined;
  if (id === "model") return task.model ?? undefined;
  return id === "dataset" ? (task.dataset ?? undefined) : undefined;
}

function Content({ id, task }: { id: string; task: TaskView }) {
  switch (id) {
    case "status":
      return <State task={task} />;
    case "curve":
      return <Curve task={task} />;
    case "ran":
      return task.status === "running" ? <Running task={task} /> : duration(ranSeconds(task, 0));
    case "created":
      return <Age at={task.created_at} />;
    case "finished":
      return <Time at={task.finished_at} />;
    case "tags":
      return <Tags tags={task.tags ?? []} />;
    default:
      return <Metric value={metricOf(task, id)} />;
  }
}

function Metric({ value }: { value: number | string | undefined }) {
  return value === undefined ? null : <span className="value">{number(value)}</span>;
}

function Curve({ task }: { task: TaskView }) {
  const values = (task.glance?.loss ?? []).flatMap((point) => point[1] ?? []);
  return values.length < 2 ? null : <Sparkline values={values} label={`Loss of ${task.name}`} />;
}

export function Tags({ tags }: { tags: readonly string[] }) {
  return (
    <span className="run-tags">
      {tags.map((tag) => (
        <span key={tag} className="tag">
          {tag}
        </span>
      ))}
    </span>
  );
}

function State({ task }: { task: TaskView }) {
  const { progress, status } = task;
  if (status === "running" && progress?.max_steps) {
    const share = percent(progress.step ?? 0, progress.max_steps);
    return (
      <span className="state">
        <Status status="running" note={task.desired === "pause" ? "pausing" : progress.phase} />
        <Bar value={share} label={`Progress of ${task.name}`} />
        <span className="muted small num">
          {progress.eta_s == null ? `${Math.floor(share)}%` : `${rough(progress.eta_s)} left`}
        </span>
      </span>
    );
  }
  const why =
    status === "failed" || status === "cancelled"
      ? plain(task.reason).replace(/^cancelled /, "")
      : status === "pending" || status === "queued"
        ? task.why?.replace(/^waiting: /, "")
        : "";
  return (
    <>
      <Status status={status} />
      {why && <span className="muted small"> · {why}</span>}
    </>
  );
}

/** The column says what it is: no "ago". */
function Age({ at }: { at: string }) {
  return (
    <time dateTime={at} title={utcTime(at)}>
      {ago(at, useNow()).replace(" ago", "")}
    </time>
  );
}

/** Only the larger unit: `12 min`. */
function rough(seconds: number): string {
  return duration(seconds).split(" ").slice(0, 2).join(" ");
}

function Running({ task }: { task: TaskView }) {
  return <>{duration(ranSeconds(task, useNow()))}</>;
}
