/** All tasks: search, filter, sort, group, and act on several at once. Ten thousand rows are drawn as they scroll by. */
import { useInfiniteQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { useVirtualizer } from "@tanstack/react-virtual";
import { useDeferredValue, useEffect, useMemo, useRef, useState } from "react";
import { api, ask } from "../api/client";
import { tasksQuery } from "../api/queries";
import type { TaskView } from "../api/schema";
import { duration, number, percent, ranSeconds } from "../lib/format";
import { grouped, type Row, searched, sorted } from "../lib/tasklist";
import { isFinal, plain, STATUSES } from "../lib/words";
import { Bar, Confirm, Status, TaskLink, Time } from "../parts/bits";
import { useNow } from "../parts/clock";
import { useSession } from "../parts/session";
import { Empty, Failed, Loading } from "../parts/states";
import { toast, toastError } from "../parts/toasts";
import type { Sort, TasksSearch } from "../router";

const ROW_PX = 34;
const MOST_ROWS = 20_000;
const MOST_COMPARED = 8;

export function Tasks() {
  const search = useSearch({ from: "/tasks" });
  const navigate = useNavigate({ from: "/tasks" });
  const change = (to: Partial<TasksSearch>) =>
    void navigate({ search: (old) => ({ ...old, ...to }), replace: true, resetScroll: false });
  const { status, kind, owner, worker } = search;
  const list = useInfiniteQuery(tasksQuery({ status, kind, owner, worker_id: worker }));
  const { hasNextPage, isFetching, fetchNextPage } = list;
  const tasks = useMemo(() => list.data?.pages.flatMap((page) => page.items) ?? [], [list.data]);
  useEffect(() => {
    if (hasNextPage && !isFetching && tasks.length < MOST_ROWS) void fetchNextPage();
  }, [hasNextPage, isFetching, fetchNextPage, tasks.length]);

  const q = useDeferredValue(search.q);
  const rows = useMemo((): Row[] => {
    const shown = sorted(searched(tasks, q), search.sort, search.up, Date.now());
    return search.group ? grouped(shown) : shown.map((task) => ({ task }));
  }, [tasks, q, search.sort, search.up, search.group]);
  const found = useMemo(() => rows.filter((row) => "task" in row).length, [rows]);
  const [chosen, setChosen] = useState<ReadonlySet<string>>(new Set());
  const choice = useMemo(() => tasks.filter((task) => chosen.has(task.id)), [tasks, chosen]);

  return (
    <div className="page">
      <div className="row between">
        <h1>
          Tasks <span className="muted num">{list.data ? number(found) : ""}</span>
        </h1>
        {choice.length > 0 ? (
          <Actions tasks={choice} onDone={() => setChosen(new Set())} />
        ) : (
          <span className="muted small">
            {isFetching && tasks.length > 0 ? `${number(tasks.length)} loaded …` : ""}
          </span>
        )}
      </div>
      <div className="filters">
        <input
          type="search"
          placeholder="Search name, id, kind, worker, error …"
          aria-label="Search"
          value={search.q ?? ""}
          onChange={(event) => change({ q: event.target.value || undefined })}
        />
        <Statuses chosen={status} onChange={(next) => change({ status: next })} />
        {(["kind", "owner", "worker"] as const).map(
          (name) =>
            search[name] && (
              <button key={name} type="button" aria-pressed="true" onClick={() => change({ [name]: undefined })}>
                {name}: {search[name]} ×
              </button>
            ),
        )}
        <label className="row tight">
          <input
            type="checkbox"
            checked={search.group === true}
            onChange={(event) => change({ group: event.target.checked || undefined })}
          />
          by workflow
        </label>
      </div>
      {list.data ? (
        <Grid rows={rows} search={search} change={change} chosen={chosen} setChosen={setChosen} />
      ) : list.error ? (
        <Failed error={list.error} retry={() => void list.refetch()} />
      ) : (
        <Loading rows={8} />
      )}
    </div>
  );
}

function Statuses({ chosen, onChange }: { chosen?: string; onChange: (to?: string) => void }) {
  const on = new Set(chosen?.split(","));
  return (
    <fieldset className="chips plain">
      <legend className="hidden">Status</legend>
      {STATUSES.map((status) => (
        <button
          key={status}
          type="button"
          aria-pressed={on.has(status)}
          onClick={() => {
            const next = new Set(on);
            if (!next.delete(status)) next.add(status);
            onChange(STATUSES.filter((each) => next.has(each)).join(",") || undefined);
          }}
        >
          {status}
        </button>
      ))}
    </fieldset>
  );
}

const COLUMNS: readonly (readonly [Sort, string, string])[] = [
  ["name", "Task", ""],
  ["kind", "Kind", "wide"],
  ["status", "Status", ""],
  ["worker", "Worker", "wide"],
  ["owner", "Owner", "wide"],
  ["created", "Created", "wide"],
  ["ran", "Ran", ""],
];

interface GridProps {
  rows: Row[];
  search: TasksSearch;
  change: (to: Partial<TasksSearch>) => void;
  chosen: ReadonlySet<string>;
  setChosen: (to: ReadonlySet<string>) => void;
}

function Grid({ rows, search, change, chosen, setChosen }: GridProps) {
  const scroll = useRef<HTMLDivElement>(null);
  const window = useVirtualizer({
    count: rows.length,
    getScrollElement: () => scroll.current,
    estimateSize: () => ROW_PX,
    overscan: 12,
  });
  const last = useRef<number>(null);
  const choose = (at: number, on: boolean, through: boolean) => {
    const next = new Set(chosen);
    const from = through && last.current !== null ? last.current : at;
    for (const row of rows.slice(Math.min(from, at), Math.max(from, at) + 1))
      if ("task" in row) on ? next.add(row.task.id) : next.delete(row.task.id);
    last.current = at;
    setChosen(next);
  };
  const all = rows.length > 0 && rows.every((row) => !("task" in row) || chosen.has(row.task.id));
  const sortBy = (by: Sort) => {
    const now = search.sort ?? "created";
    change({
      sort: by === "created" ? undefined : by,
      up: now === by ? !search.up || undefined : by !== "created" || undefined,
    });
  };
  return (
    <div className="grid" role="table" aria-label="Tasks" aria-rowcount={rows.length + 1}>
      <div className="line head" role="row">
        <span role="columnheader">
          <input
            type="checkbox"
            aria-label="Choose all that are shown"
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
        <Empty title="No task fits">
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
          <div className="rows" style={{ height: window.getTotalSize() }}>
            {window.getVirtualItems().map(({ index, start }) => {
              const row = rows[index];
              if (!row) return null;
              const style = { transform: `translateY(${start}px)` };
              if (!("task" in row)) return <Group key={row.workflow} row={row} style={style} />;
              return (
                <TaskRow
                  key={row.task.id}
                  task={row.task}
                  style={style}
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

function Group({ row, style }: { row: Extract<Row, { workflow: string }>; style: React.CSSProperties }) {
  const done = row.tasks.filter((task) => isFinal(task.status)).length;
  return (
    <div className="line group" role="row" style={style}>
      <span className="cut" role="cell">
        <Link to="/workflows/$workflowId" params={{ workflowId: row.workflow }} className="strong">
          {row.name}
        </Link>
      </span>
      <span className="muted num" role="cell">
        {done} of {row.tasks.length} ended
      </span>
    </div>
  );
}

function TaskRow({
  task,
  style,
  index,
  chosen,
  onChoose,
}: {
  task: TaskView;
  style: React.CSSProperties;
  index: number;
  chosen: boolean;
  onChoose: (at: number, on: boolean, through: boolean) => void;
}) {
  return (
    <div className={chosen ? "line chosen" : "line"} role="row" aria-rowindex={index + 2} style={style}>
      <span role="cell">
        <input
          type="checkbox"
          aria-label={`Choose ${task.name}`}
          checked={chosen}
          onChange={() => {}}
          onClick={(event) => onChoose(index, !chosen, event.shiftKey)}
        />
      </span>
      <Cell>
        <TaskLink id={task.id} name={task.name} />
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
}

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
  const why = task.status === "failed" || task.status === "cancelled" ? plain(task.reason) : "";
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

function Actions({ tasks, onDone }: { tasks: TaskView[]; onDone: () => void }) {
  const { mayChange } = useSession();
  const client = useQueryClient();
  const navigate = useNavigate();
  const [asking, setAsking] = useState(false);
  const live = tasks.filter((task) => !isFinal(task.status));
  const over = tasks.filter((task) => isFinal(task.status));

  const each = async (some: TaskView[], action: "cancel" | "retry", said: string) => {
    try {
      const task_ids = some.map((task) => task.id);
      const { items } = await ask(api.POST("/api/v1/tasks/bulk", { body: { action, task_ids } }));
      const bad = items.filter((item) => !item.ok);
      if (bad.length < items.length) toast(`${said}: ${items.length - bad.length}`, "good");
      if (bad[0]) toast(`${bad.length} could not be: ${bad[0].detail}`, "bad", bad[0].hint ?? undefined);
    } catch (error) {
      toastError(error);
    }
    await client.invalidateQueries({ queryKey: ["tasks"] });
    onDone();
  };
  return (
    <div className="row tight">
      <span className="muted">{tasks.length} chosen</span>
      <button
        type="button"
        disabled={tasks.length < 2 || tasks.length > MOST_COMPARED}
        title={`Two to ${MOST_COMPARED}`}
        onClick={() => void navigate({ to: "/compare", search: { tasks: tasks.map((task) => task.id).join(",") } })}
      >
        Compare
      </button>
      {mayChange && (
        <>
          <button
            type="button"
            disabled={over.length === 0}
            onClick={() => void each(over, "retry", "Submitted again")}
          >
            Retry {over.length || ""}
          </button>
          <button type="button" className="danger" disabled={live.length === 0} onClick={() => setAsking(true)}>
            Cancel {live.length || ""}
          </button>
        </>
      )}
      <button type="button" className="quiet" onClick={onDone}>
        none
      </button>
      {asking && (
        <Confirm
          title={live.length === 1 ? "Cancel this task?" : `Cancel ${live.length} tasks?`}
          action="Cancel them"
          danger
          onDo={() => void each(live, "cancel", "Cancelled")}
          onClose={() => setAsking(false)}
        >
          What runs ends after its step. Checkpoints that were saved stay, and can be resumed from.
        </Confirm>
      )}
    </div>
  );
}
