/** All runs: searched, filtered and sorted by the server, loaded on scroll. */
import { useInfiniteQuery, useQuery, useQueryClient } from "@tanstack/react-query";
import { useNavigate, useSearch } from "@tanstack/react-router";
import { useMemo, useState } from "react";
import { type TasksChoice, type TasksWanted, taskCountsQuery, tasksQuery } from "../api/queries";
import type { TaskCounts, TaskView } from "../api/schema";
import { number } from "../lib/format";
import { columnsOf, DEFAULT_COLUMNS, methodName, shortName } from "../lib/runcolumns";
import { grouped, order, type Row } from "../lib/tasklist";
import { STATUSES } from "../lib/words";
import { useAddressed } from "../parts/addressed";
import { EditRun } from "../parts/EditRun";
import { Popover } from "../parts/Popover";
import { useIsPhone } from "../parts/phone";
import { Failed, Loading } from "../parts/states";
import { isTexts, useStored } from "../parts/stored";
import type { TasksSearch } from "../router";
import { Actions } from "./tasks/Actions";
import { Columns } from "./tasks/Columns";
import { Grid } from "./tasks/Grid";
import { Views } from "./tasks/Views";
import "../styles/runs.css";

/** Maximum number of selected runs: each one is loaded first, to know its status. */
const MOST_CHOSEN = 10_000;

export function Tasks() {
  const search = useSearch({ from: "/tasks" });
  const navigate = useNavigate({ from: "/tasks" });
  const client = useQueryClient();
  const change = (to: Partial<TasksSearch>) =>
    void navigate({ search: (old) => ({ ...old, ...to }), replace: true, resetScroll: false });
  const { q, status, kind, owner, worker, model, method, tag } = search;
  const [typed, setTyped] = useAddressed(q ?? "", (next) => change({ q: next || undefined }));
  const [chosenColumns, setColumns] = useStored("columns of runs", [...DEFAULT_COLUMNS], isTexts);
  const phone = useIsPhone();
  const columns = useMemo(() => columnsOf(chosenColumns, phone), [chosenColumns, phone]);
  const others: TasksChoice = { q, kind, owner, worker_id: worker, model, method, tag };
  const wanted: TasksWanted = { ...others, status, sort: order(search.sort, search.up), glance: true };
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
  const [edited, setEdited] = useState<TaskView | null>(null);

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
  const picked = (name: keyof TasksChoice & keyof TasksSearch, labelOf?: (value: string) => string) => (
    <Picked
      name={name}
      value={search[name]}
      among={counts.data?.[name as keyof TaskCounts] as Record<string, number> | undefined}
      onChange={(next) => change({ [name]: next })}
      labelOf={labelOf}
    />
  );

  const filters = [kind, owner, worker, model, method, tag].filter(Boolean).length;
  const selects = (
    <>
      {picked("model", shortName)}
      {picked("method", methodName)}
      {picked("tag")}
      {picked("kind")}
      {picked("owner")}
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
    </>
  );

  return (
    <div className="page">
      <div className="row between">
        <h1>
          Runs <span className="muted num">{list.data ? number(total) : ""}</span>
        </h1>
        {choice.length > 0 ? (
          <Actions tasks={choice} onDone={() => setChosen(new Set())} onEdit={setEdited} />
        ) : (
          <div className="row tight">
            {old && (
              <button type="button" className="quiet" onClick={showAgain}>
                List changed, reload
              </button>
            )}
            <Views search={search} columns={chosenColumns} setColumns={setColumns} />
            {!phone && <Columns chosen={chosenColumns} onChange={setColumns} tasks={tasks} />}
          </div>
        )}
      </div>
      <div className="filters">
        <input
          type="search"
          placeholder="Search name, model, dataset, tag, id …"
          aria-label="Search"
          value={typed}
          onChange={(event) => setTyped(event.target.value)}
        />
        {phone ? (
          <Popover label={`Filters${filters ? ` · ${filters}` : ""}`}>
            {() => <div className="stack">{selects}</div>}
          </Popover>
        ) : (
          selects
        )}
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
          columns={columns}
          missing={total - tasks.length}
          more={() => {
            if (list.hasNextPage && !list.isFetching) void list.fetchNextPage();
          }}
          busy={list.isPlaceholderData}
          filtered={filters > 0 || Boolean(q || status)}
          onEdit={setEdited}
          {...{ search, change, chosen, setChosen }}
        />
      ) : list.error ? (
        <Failed error={list.error} retry={() => void list.refetch()} />
      ) : (
        <Loading rows={8} />
      )}
      {edited && <EditRun task={edited} onClose={() => setEdited(null)} />}
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
  labelOf = (each) => each,
}: {
  name: string;
  value?: string;
  among?: Record<string, number>;
  onChange: (to?: string) => void;
  labelOf?: (value: string) => string;
}) {
  const values = [...new Set([...Object.keys(among ?? {}), ...(value ? [value] : [])])].sort();
  if (!value && (values.length === 0 || (values.length < 2 && name !== "tag"))) return null;
  return (
    <select
      aria-label={`Only this ${name}`}
      value={value ?? ""}
      onChange={(event) => onChange(event.target.value || undefined)}
    >
      <option value="">any {name}</option>
      {values.map((each) => (
        <option key={each} value={each}>
          {labelOf(each)}
        </option>
      ))}
    </select>
  );
}
