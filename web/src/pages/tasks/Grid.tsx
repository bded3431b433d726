/** Rows of the list: rendered and loaded on scroll. */
import { Link, useNavigate } from "@tanstack/react-router";
import { useVirtualizer } from "@tanstack/react-virtual";
import { type MouseEvent, memo, useCallback, useEffect, useRef } from "react";
import type { TaskView } from "../../api/schema";
import { duration, percent, ranSeconds } from "../../lib/format";
import type { Row } from "../../lib/tasklist";
import { isFinal, plain } from "../../lib/words";
import { Bar, Status, Time } from "../../parts/bits";
import { useNow } from "../../parts/clock";
import { Empty } from "../../parts/states";
import type { Sort, TasksSearch } from "../../router";

const ROW_PX = 34;
/** More rows are loaded when fewer than this are left below the visible ones. */
const AHEAD_ROWS = 60;

const COLUMNS: readonly (readonly [Sort, string, string])[] = [
  ["name", "Run", ""],
  ["kind", "Kind", "wide"],
  ["status", "Status", ""],
  ["worker", "Worker", "wide"],
  ["owner", "Owner", "wide"],
  ["created", "Created", "wide"],
  ["ran", "Duration", ""],
];

interface GridProps {
  rows: Row[];
  /** Number of rows that are not loaded. */
  missing: number;
  more: () => void;
  /** The previous list is shown while the requested one loads. */
  busy: boolean;
  search: TasksSearch;
  change: (to: Partial<TasksSearch>) => void;
  chosen: ReadonlySet<string>;
  setChosen: (to: ReadonlySet<string>) => void;
}

export function Grid({ rows, missing, more, busy, search, change, chosen, setChosen }: GridProps) {
  const scroll = useRef<HTMLDivElement>(null);
  const window = useVirtualizer({
    count: rows.length + missing,
    getScrollElement: () => scroll.current,
    estimateSize: () => ROW_PX,
    overscan: 6,
  });
  const lowest = window.getVirtualItems().at(-1)?.index ?? 0;
  useEffect(() => {
    if (missing > 0 && lowest > rows.length - AHEAD_ROWS) more();
  });
  const last = useRef<number>(null);
  const now = useRef({ rows, chosen, setChosen });
  now.current = { rows, chosen, setChosen };
  // A stable function, so that a row re-renders only when it changes.
  const choose = useCallback((at: number, on: boolean, through: boolean) => {
    const next = new Set(now.current.chosen);
    const from = through && last.current !== null ? last.current : at;
    for (const row of now.current.rows.slice(Math.min(from, at), Math.max(from, at) + 1))
      if ("task" in row) on ? next.add(row.task.id) : next.delete(row.task.id);
    last.current = at;
    now.current.setChosen(next);
  }, []);
  const navigate = useNavigate();
  const follow = (event: MouseEvent) => {
    const taskId = (event.target as Element).closest<HTMLElement>("a[data-task]")?.dataset.task;
    if (!taskId || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    void navigate({ to: "/tasks/$taskId", params: { taskId } });
  };
  const all = rows.length > 0 && rows.every((row) => !("task" in row) || chosen.has(row.task.id));
  const sortBy = (by: Sort) => {
    const now = search.sort ?? "created";
    change({
      sort: by === "created" ? undefined : by,
      group: by === "created" ? search.group : undefined,
      up: now === by ? !search.up || undefined : by !== "created" || undefined,
    });
  };
  return (
    <div className="grid" role="table" aria-label="Tasks" aria-rowcount={rows.length + missing + 1} aria-busy={busy}>
      <div className="line head" role="row">
        <span role="columnheader">
          <input
            type="checkbox"
            aria-label="Select all shown"
            checked={all}
            onChange={(event) =>
              setChosen(
                new Set(event.target.checked ? rows.flatMap((row) => ("task" in row ? [row.task.id] : [])) : []),
              )
            }
          />
        </span>
        {COLUMNS.map(([by, name, wide]) => {
          const on = (search.sort ?? "created") === by;
          return (
            <span
              key={by}
              className={wide}
              role="columnheader"
              aria-sort={on ? (search.up ? "ascending" : "descending") : undefined}
            >
              <button type="button" onClick={() => sortBy(by)}>
                {name} {on ? (search.up ? "↑" : "↓") : ""}
              </button>
            </span>
          );
        })}
      </div>
      {rows.length === 0 ? (
        <Empty title="No matching runs">
          <button
            type="button"
            onClick={() =>
              change({ q: undefined, status: undefined, kind: undefined, owner: undefined, worker: undefined })
            }
          >
            Show all
          </button>
        </Empty>
      ) : (
        <div
          className="scroll"
          ref={scroll}
          style={{ height: `min(${window.getTotalSize() + 1}px, calc(100vh - var(--above)))` }}
        >
          {/* biome-ignore lint/a11y/useKeyWithClickEvents: a key on a link is a click on it */}
          <div className="rows" role="rowgroup" onClick={follow} style={{ height: window.getTotalSize() }}>
            {window.getVirtualItems().map(({ index, start }) => {
              const row = rows[index];
              if (!row)
                return <div key={`row ${index}`} className="line missing" style={placed(start)} aria-hidden="true" />;
              if (!("task" in row)) return <Group key={`${row.workflow} ${index}`} row={row} top={start} />;
              return (
                <TaskRow
                  key={row.task.id}
                  task={row.task}
                  top={start}
                  index={index}
                  chosen={chosen.has(row.task.id)}
                  onChoose={choose}
                />
              );
            })}
          </div>
        </div>
      )}
    </div>
  );
}

function placed(top: number): React.CSSProperties {
  return { transform: `translateY(${top}px)` };
}

function Group({ row, top }: { row: Extract<Row, { workflow: string }>; top: number }) {
  const done = row.tasks.filter((task) => isFinal(task.status)).length;
  return (
    <div className="line group" role="row" style={placed(top)}>
      <span className="cut" role="cell">
        <Link to="/workflows/$workflowId" params={{ workflowId: row.workflow }} className="strong">
          {row.name}
        </Link>
      </span>
      <span className="muted num" role="cell">
        {done} of {row.tasks.length}
        {row.more ? "+" : ""} ended
      </span>
    </div>
  );
}

/** The list handles clicks on links: thousands of router links would slow down scrolling. */
const TaskRow = memo(function TaskRow({
  task,
  top,
  index,
  chosen,
  onChoose,
}: {
  task: TaskView;
  top: number;
  index: number;
  chosen: boolean;
  onChoose: (at: number, on: boolean, through: boolean) => void;
}) {
  return (
    <div className={chosen ? "line chosen" : "line"} role="row" aria-rowindex={index + 2} style={placed(top)}>
      <span role="cell">
        <input
          type="checkbox"
          aria-label={`Select ${task.name}`}
          checked={chosen}
          onChange={() => {}}
          onClick={(event) => onChoose(index, !chosen, event.shiftKey)}
        />
      </span>
      <Cell>
        <a href={`/ui/tasks/${task.id}`} data-task={task.id} className="strong">
          {task.name}
        </a>
      </Cell>
      <Cell wide>{task.kind}</Cell>
      <Cell title={task.why ?? task.error ?? undefined}>
        <State task={task} />
      </Cell>
      <Cell wide>{task.worker_id ?? ""}</Cell>
      <Cell wide>{task.owner}</Cell>
      <Cell wide>
        <Time at={task.created_at} />
      </Cell>
      <Cell>
        <Ran task={task} />
      </Cell>
    </div>
  );
});

function Cell({ children, wide, title }: { children: React.ReactNode; wide?: boolean; title?: string }) {
  return (
    <span className={wide ? "cut wide muted" : "cut"} role="cell" title={title}>
      {children}
    </span>
  );
}

function State({ task }: { task: TaskView }) {
  const { progress } = task;
  if (task.status === "running" && progress?.max_steps)
    return (
      <span className="row tight nowrap" style={{ flexWrap: "nowrap" }}>
        <Status status="running" note={task.desired === "pause" ? "pausing" : progress.phase} />
        <span className="grow">
          <Bar value={percent(progress.step ?? 0, progress.max_steps)} label={`Progress of ${task.name}`} />
        </span>
      </span>
    );
  const why =
    task.status === "failed" || task.status === "cancelled" ? plain(task.reason).replace(/^cancelled /, "") : "";
  return (
    <>
      <Status status={task.status} />
      {why && <span className="muted small"> · {why}</span>}
    </>
  );
}

function Ran({ task }: { task: TaskView }) {
  return (
    <span className="num muted">
      {task.status === "running" ? <Running task={task} /> : duration(ranSeconds(task, 0))}
    </span>
  );
}

function Running({ task }: { task: TaskView }) {
  return <>{duration(ranSeconds(task, useNow()))}</>;
}
