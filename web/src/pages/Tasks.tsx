/** All tasks: searched, filtered and sorted by the server, loaded on scroll. */
import { useInfiniteQuery, useQuery, useQueryClient } from "@tanstack/react-query";
import { useNavigate, useSearch } from "@tanstack/react-router";
import { useMemo, useState } from "react";
import { type TasksChoice, type TasksWanted, taskCountsQuery, tasksQuery } from "../api/queries";
import type { TaskCounts } from "../api/schema";
import { number } from "../lib/format";
import { grouped, order, type Row } from "../lib/tasklist";
import { STATUSES } from "../lib/words";
import { useAddressed } from "../parts/addressed";
import { Failed, Loading } from "../parts/states";
import type { TasksSearch } from "../router";
import { Actions } from "./tasks/Actions";
import { Grid } from "./tasks/Grid";

/** Maximum number of selected tasks: each one is loaded first, to know its status. */
const MOST_CHOSEN = 10_000;

export function Tasks() {
  const search = useSearch({ from: "/tasks" });
  const navigate = useNavigate({ from: "/tasks" });
  const client = useQueryClient();
  const change = (to: Partial<TasksSearch>) =>
    void navigate({ search: (old) => ({ ...old, ...to }), replace: true, resetScroll: false });
  const { q, status, kind, owner, worker } = search;
  const [typed, setTyped] = useAddressed(q ?? "", (next) => change({ q: next || undefined }));
  const others: TasksChoice = { q, kind, owner, worker_id: worker };
  const wanted: TasksWanted = { ...others, status, sort: order(search.sort, search.up) };
  const list = useInfiniteQuery(tasksQuery(wanted));
  const counts = useQuery(taskCountsQuery(others));
  const tasks = useMemo(() => list.data?.pages.flatMap((page) => page.items) ?? [], [list.data]);
  const total = list.hasNextPage ? Math.max(tasks.length, counted(counts.data, status)) : tasks.length;
  const rows = useMemo(
    (): Row[] => (search.group ? grouped(tasks, list.hasNextPage) : tasks.map((task) => ({ task }))),
    [tasks, search.group, list.hasNextPage],
  );
  const [chosen, setChosen] = useState<ReadonlySet<string>>(new Set());
  const choice = useMemo(() => tasks.filter((task) => chosen.has(task.id)), [tasks, chosen]);

  const chooseAll = async () => {
    let found = await list.fetchNextPage();
    const ids = () => found.data?.pages.flatMap((page) => page.items.map((task) => task.id)) ?? [];
    while (found.hasNextPage && !found.isError && ids().length < MOST_CHOSEN) found = await list.fetchNextPage();
    setChosen(new Set(ids().slice(0, MOST_CHOSEN)));
  };
  const { queryKey } = tasksQuery(wanted);
  /** From the top, and only the visible part. */
  const showAgain = () => void client.resetQueries({ queryKey, exact: true });
  const old = list.isStale && !list.isFetching && (list.data?.pages.length ?? 0) > 1;

  return (
    <div className="page">
      <div className="row between">
        <h1>
          Runs <span className="muted num">{list.data ? number(total) : ""}</span>
        </h1>
        {choice.length > 0 ? (
          <Actions tasks={choice} onDone={() => setChosen(new Set())} />
        ) : (
          old && (
            <button type="button" className="quiet" onClick={showAgain}>
              List changed, reload
            </button>
          )
        )}
      </div>
      <div className="filters">
        <input
          type="search"
          placeholder="Search name, id, kind, owner, worker, workflow"
          aria-label="Search"
          value={typed}
          onChange={(event) => setTyped(event.target.value)}
        />
        <Picked name="kind" value={kind} among={counts.data?.kind} onChange={(next) => change({ kind: next })} />
        <Picked name="owner" value={owner} among={counts.data?.owner} onChange={(next) => change({ owner: next })} />
        <Picked
          name="worker"
          value={worker}
          among={counts.data?.worker_id}
          onChange={(next) => change({ worker: next })}
        />
        <label className="row tight">
          <input
            type="checkbox"
            checked={search.group === true}
            onChange={(event) =>
              // Tasks of a workflow are adjacent only in submission order.
              change({ group: event.target.checked || undefined, sort: undefined })
            }
          />
          Group by workflow
        </label>
        <Statuses chosen={status} counts={counts.data} onChange={(next) => change({ status: next })} />
      </div>
      {choice.length > 0 && choice.length === tasks.length && list.hasNextPage && (
        <div className="note row">
          <span>
            {number(tasks.length)} loaded runs selected; {number(total)} match.
          </span>
          <button type="button" disabled={list.isFetching} onClick={() => void chooseAll()}>
            {list.isFetching
              ? `${number(tasks.length)} loaded …`
              : total > MOST_CHOSEN
                ? `Select the first ${number(MOST_CHOSEN)}`
                : `Select all ${number(total)}`}
          </button>
        </div>
      )}
      {list.data ? (
        <Grid
          // A different list starts at the top.
          key={JSON.stringify(wanted)}
          rows={rows}
          missing={total - tasks.length}
          more={() => {
            if (list.hasNextPage && !list.isFetching) void list.fetchNextPage();
          }}
          busy={list.isPlaceholderData}
          {...{ search, change, chosen, setChosen }}
        />
      ) : list.error ? (
        <Failed error={list.error} retry={() => void list.refetch()} />
      ) : (
        <Loading rows={8} />
      )}
    </div>
  );
}

/** Number of matching tasks by status. */
function counted(counts: TaskCounts | undefined, status: string | undefined): number {
  if (!counts) return 0;
  if (!status) return counts.total;
  return status.split(",").reduce((sum, each) => sum + (counts.status[each] ?? 0), 0);
}

function Statuses({
  chosen,
  counts,
  onChange,
}: {
  chosen?: string;
  counts?: TaskCounts;
  onChange: (to?: string) => void;
}) {
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
          {!!counts?.status[status] && <span className="muted num"> {number(counts.status[status])}</span>}
        </button>
      ))}
    </fieldset>
  );
}

/** A filter with the existing values; hidden if there is no choice. */
function Picked({
  name,
  value,
  among,
  onChange,
}: {
  name: string;
  value?: string;
  among?: Record<string, number>;
  onChange: (to?: string) => void;
}) {
  const values = [...new Set([...Object.keys(among ?? {}), ...(value ? [value] : [])])].sort();
  if (!value && values.length < 2) return null;
  return (
    <select
      aria-label={`Only this ${name}`}
      value={value ?? ""}
      onChange={(event) => onChange(event.target.value || undefined)}
    >
      <option value="">any {name}</option>
      {values.map((each) => (
        <option key={each}>{each}</option>
      ))}
    </select>
  );
}
