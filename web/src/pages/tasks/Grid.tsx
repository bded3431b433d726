/** Rows of the table: rendered and loaded on scroll; keys move, select and open. */

import { Link, useNavigate } from "@tanstack/react-router";
import { useVirtualizer } from "@tanstack/react-virtual";
import { type MouseEvent, memo, useCallback, useEffect, useRef } from "react";
import type { TaskView } from "../../api/schema";
import { type RunColumn, sortsUpFirst } from "../../lib/runcolumns";
import type { Row } from "../../lib/tasklist";
import { isFinal } from "../../lib/words";
import { maySteer, useSession } from "../../parts/session";
import { Empty } from "../../parts/states";
import { isTyping } from "../../parts/typing";
import type { TasksSearch } from "../../router";
import { Cell } from "./Cells";

const ROW_PX = 34;
const HEAD_PX = 32;
const BOX_PX = 30;
/** More rows are loaded when fewer than this are left below the visible ones. */
const AHEAD_ROWS = 60;

interface GridProps {
  rows: Row[];
  columns: readonly RunColumn[];
  /** Number of rows that are not loaded. */
  missing: number;
  more: () => void;
  /** The previous list is shown while the requested one loads. */
  busy: boolean;
  /** Whether filters may hide runs. */
  filtered: boolean;
  search: TasksSearch;
  change: (to: Partial<TasksSearch>) => void;
  chosen: ReadonlySet<string>;
  setChosen: (to: ReadonlySet<string>) => void;
  onEdit: (task: TaskView) => void;
}

export function Grid(props: GridProps) {
  const { rows, columns, missing, more, busy, filtered, chosen, change } = props;
  const scroll = useRef<HTMLDivElement>(null);
  const window = useVirtualizer({
    count: rows.length + missing,
    getScrollElement: () => scroll.current,
    estimateSize: () => ROW_PX,
    overscan: 6,
    scrollMargin: HEAD_PX,
    scrollPaddingStart: HEAD_PX,
  });
  const lowest = window.getVirtualItems().at(-1)?.index ?? 0;
  useEffect(() => {
    if (missing > 0 && lowest > rows.length - AHEAD_ROWS) more();
  });
  const last = useRef<number>(null);
  const now = useRef(props);
  now.current = props;
  // A stable function, so that a row re-renders only when it changes.
  const choose = useCallback((at: number, on: boolean, through: boolean) => {
    const next = new Set(now.current.chosen);
    const from = through && last.current !== null ? last.current : at;
    for (const row of now.current.rows.slice(Math.min(from, at), Math.max(from, at) + 1))
      if ("task" in row) on ? next.add(row.task.id) : next.delete(row.task.id);
    last.current = at;
    now.current.setChosen(next);
  }, []);
  useKeys(now, scroll, (at) => window.scrollToIndex(at, { align: "auto" }), choose);
  const navigate = useNavigate();
  const session = useSession();
  const click = (event: MouseEvent) => {
    const target = event.target as Element;
    const row = rows[Number(target.closest<HTMLElement>("[data-row]")?.dataset.row)];
    if (!row || !("task" in row)) return;
    if (target.closest(".edit")) {
      props.onEdit(row.task);
      return;
    }
    if (!target.closest("a[data-task]")) return;
    if (event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    void navigate({ to: "/tasks/$taskId", params: { taskId: row.task.id } });
  };
  const size = window.getTotalSize();
  if (rows.length === 0)
    return (
      <div className="grid" role="region" aria-label="Runs">
        {filtered ? (
          <Empty title="No matching runs">
            <button type="button" onClick={() => change(NO_FILTERS)}>
              Show all
            </button>
          </Empty>
        ) : (
          <Empty title="No runs yet">
            {session.mayChange ? (
              <Link to="/train" className="button primary">
                Start a fine-tune
              </Link>
            ) : (
              "Runs of this project are listed here."
            )}
          </Empty>
        )}
      </div>
    );
  return (
    <>
      <div className="grid" role="table" aria-label="Runs" aria-rowcount={rows.length + missing + 1} aria-busy={busy}>
        <div
          className="scroll"
          ref={scroll}
          style={{ height: `min(${size + HEAD_PX + 1}px, calc(100vh - var(--above)))`, ...templateOf(columns) }}
        >
          <Head {...props} />
          {/* biome-ignore lint/a11y/useKeyWithClickEvents: a key on a link is a click on it */}
          <div className="rows" role="rowgroup" onClick={click} style={{ height: size }}>
            {window.getVirtualItems().map(({ index, start }) => {
              const row = rows[index];
              const top = start - HEAD_PX;
              if (!row)
                return <div key={`row ${index}`} className="line missing" style={placed(top)} aria-hidden="true" />;
              if (!("task" in row)) return <Group key={`${row.workflow} ${index}`} row={row} top={top} index={index} />;
              return (
                <TaskRow
                  key={row.task.id}
                  task={row.task}
                  top={top}
                  index={index}
                  columns={columns}
                  chosen={chosen.has(row.task.id)}
                  mayEdit={maySteer(session, row.task.owner)}
                  onChoose={choose}
                />
              );
            })}
          </div>
        </div>
      </div>
      <p className="keys muted small hide-phone">
        <kbd>j</kbd> <kbd>k</kbd> move · <kbd>x</kbd> select · <kbd>Enter</kbd> open · <kbd>e</kbd> edit · <kbd>/</kbd>{" "}
        search
        {chosen.size > 0 && (
          <>
            {" "}
            · <kbd>Esc</kbd> clear selection
          </>
        )}
      </p>
    </>
  );
}

const NO_FILTERS: Partial<TasksSearch> = {
  q: undefined,
  status: undefined,
  kind: undefined,
  owner: undefined,
  worker: undefined,
  model: undefined,
  method: undefined,
  tag: undefined,
};

function Head({ rows, columns, search, change, chosen, setChosen }: GridProps) {
  const all = rows.length > 0 && rows.every((row) => !("task" in row) || chosen.has(row.task.id));
  const sortBy = (by: string) => {
    const again = (search.sort ?? "created") === by;
    change({
      sort: by === "created" ? undefined : by,
      group: by === "created" ? search.group : undefined,
      up: (again ? !search.up : sortsUpFirst(by)) || undefined,
    });
  };
  return (
    <div className="line head" role="row">
      <span role="columnheader" className="box">
        <input
          type="checkbox"
          aria-label="Select all shown"
          checked={all}
          onChange={(event) =>
            setChosen(new Set(event.target.checked ? rows.flatMap((row) => ("task" in row ? [row.task.id] : [])) : []))
          }
        />
      </span>
      {columns.map(({ id, label, sorts, numeric }) => {
        const on = (search.sort ?? "created") === id;
        return (
          <span
            key={id}
            className={[id === "name" ? "name" : "", numeric ? "right" : ""].join(" ")}
            role="columnheader"
            aria-sort={on ? (search.up ? "ascending" : "descending") : undefined}
          >
            {sorts ? (
              <button type="button" onClick={() => sortBy(id)} title={`Sort by ${label}`}>
                {label} {on ? (search.up ? "↑" : "↓") : ""}
              </button>
            ) : (
              label
            )}
          </span>
        );
      })}
    </div>
  );
}

/** The columns in CSS, and the width below which the table scrolls sideways. */
function templateOf(columns: readonly RunColumn[]): React.CSSProperties {
  const least = columns.reduce((sum, { width }) => sum + Number(/\d+/.exec(width)?.[0]), BOX_PX + 16);
  const template = [`${BOX_PX}px`, ...columns.map(({ width }) => width)].join(" ");
  return { "--columns": template, "--least": `${least}px` } as React.CSSProperties;
}

/** `j`, `k` and arrows move the focus; `x` selects, `e` edits, Escape clears the selection. Enter follows the link. */
function useKeys(
  props: React.RefObject<GridProps>,
  scroll: React.RefObject<HTMLDivElement | null>,
  show: (at: number) => void,
  choose: (at: number, on: boolean, through: boolean) => void,
): void {
  const showing = useRef(show);
  showing.current = show;
  useEffect(() => {
    // Keys may come faster than the rows that they move to are rendered.
    let next: number | null = null;
    const focused = () => {
      if (next !== null) return next;
      const row = document.activeElement?.closest<HTMLElement>(".grid [data-row]");
      return row ? Number(row.dataset.row) : -1;
    };
    const linkAt = (at: number) => scroll.current?.querySelector<HTMLElement>(`[data-row="${at}"] a`);
    const focus = (at: number) => {
      showing.current(at);
      const link = linkAt(at);
      next = link ? null : at;
      link?.focus({ preventScroll: true });
      if (!link)
        requestAnimationFrame(() => {
          if (next !== null) linkAt(next)?.focus({ preventScroll: true });
          next = null;
        });
    };
    const press = (event: KeyboardEvent) => {
      if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
      const { rows, chosen, setChosen, onEdit } = props.current;
      const at = focused();
      const row = rows[at];
      const task = row && "task" in row ? row.task : undefined;
      if (event.key === "j" || (event.key === "ArrowDown" && at >= 0)) focus(Math.min(at + 1, rows.length - 1));
      else if (event.key === "k" || (event.key === "ArrowUp" && at >= 0)) focus(Math.max(at - 1, 0));
      else if (event.key.toLowerCase() === "x" && task) choose(at, !chosen.has(task.id), event.shiftKey);
      else if (event.key === "e" && task) onEdit(task);
      else if (event.key === "Escape" && chosen.size > 0) setChosen(new Set());
      else return;
      event.preventDefault();
    };
    document.addEventListener("keydown", press);
    return () => document.removeEventListener("keydown", press);
  }, [props, scroll, choose]);
}

function placed(top: number): React.CSSProperties {
  return { transform: `translateY(${top}px)` };
}

function Group({ row, top, index }: { row: Extract<Row, { workflow: string }>; top: number; index: number }) {
  const done = row.tasks.filter((task) => isFinal(task.status)).length;
  return (
    <div className="line group" role="row" data-row={index} style={placed(top)}>
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
  columns,
  chosen,
  mayEdit,
  onChoose,
}: {
  task: TaskView;
  top: number;
  index: number;
  columns: readonly RunColumn[];
  chosen: boolean;
  mayEdit: boolean;
  onChoose: (at: number, on: boolean, through: boolean) => void;
}) {
  return (
    <div
      className={chosen ? "line chosen" : "line"}
      role="row"
      aria-rowindex={index + 2}
      data-row={index}
      style={placed(top)}
    >
      <span role="cell" className="box">
        <input
          type="checkbox"
          aria-label={`Select ${task.name}`}
          checked={chosen}
          onChange={() => {}}
          onClick={(event) => onChoose(index, !chosen, event.shiftKey)}
        />
      </span>
      {columns.map((column) =>
        column.id === "name" ? (
          <span key={column.id} className="name" role="cell" title={task.name}>
            <a href={`/ui/tasks/${task.id}`} data-task={task.id} className="strong cut">
              {task.name}
            </a>
            {mayEdit && (
              <button type="button" className="quiet edit" tabIndex={-1} aria-label={`Edit ${task.name}`} title="Edit">
                ✎
              </button>
            )}
          </span>
        ) : (
          <Cell key={column.id} column={column} task={task} />
        ),
      )}
    </div>
  );
});
