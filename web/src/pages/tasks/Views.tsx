/** Views of the runs table: filters, order and columns under a name, kept for the user. */
import { useNavigate } from "@tanstack/react-router";
import { type FormEvent, useState } from "react";
import { DEFAULT_COLUMNS } from "../../lib/runcolumns";
import { Popover } from "../../parts/Popover";
import { useStored } from "../../parts/stored";
import type { TasksSearch } from "../../router";

interface View {
  name: string;
  search: TasksSearch;
  columns: string[];
}

const GIVEN: readonly View[] = [
  { name: "All runs", search: {}, columns: [...DEFAULT_COLUMNS] },
  { name: "Active", search: { status: "pending,queued,dispatched,running,paused" }, columns: [...DEFAULT_COLUMNS] },
  { name: "Best eval loss", search: { sort: "best.eval_loss", up: true }, columns: [...DEFAULT_COLUMNS] },
  { name: "Failed", search: { status: "failed" }, columns: [...DEFAULT_COLUMNS] },
];

const NONE: View[] = [];

function isViews(value: unknown): value is View[] {
  return (
    Array.isArray(value) &&
    value.every(({ name, search, columns }) => typeof name === "string" && search && Array.isArray(columns))
  );
}

/** Which view is shown; the order of keys says nothing. */
const keyOf = (search: TasksSearch, columns: readonly string[]) =>
  JSON.stringify([
    Object.entries(search)
      .filter(([, value]) => value !== undefined)
      .sort(),
    columns,
  ]);

export function Views({
  search,
  columns,
  setColumns,
}: {
  search: TasksSearch;
  columns: string[];
  setColumns: (to: string[]) => void;
}) {
  const navigate = useNavigate({ from: "/tasks" });
  const [saved, setSaved] = useStored("views of runs", NONE, isViews);
  const [name, setName] = useState("");
  const key = keyOf(search, columns);
  const now = [...GIVEN, ...saved].find((view) => keyOf(view.search, view.columns) === key);
  const show = (view: View) => {
    setColumns(view.columns);
    void navigate({ search: view.search, replace: true });
  };
  const save = (event: FormEvent) => {
    event.preventDefault();
    const named = name.trim();
    setSaved([...saved.filter((view) => view.name !== named), { name: named, search, columns }]);
    setName("");
  };
  const item = (view: View) => (
    <button key={view.name} type="button" className="quiet" aria-pressed={view === now} onClick={() => show(view)}>
      {view.name}
    </button>
  );
  return (
    <Popover label={now ? `View: ${now.name}` : "Views"} title="Saved filters, order and columns">
      {() => (
        <div className="stack">
          <div className="options">{GIVEN.map(item)}</div>
          {saved.length > 0 && (
            <fieldset className="plain options">
              <legend className="muted small">Your views</legend>
              {saved.map((view) => (
                <div key={view.name} className="row between">
                  {item(view)}
                  <button
                    type="button"
                    className="quiet"
                    aria-label={`Delete the view ${view.name}`}
                    title="Delete"
                    onClick={() => setSaved(saved.filter((each) => each !== view))}
                  >
                    ×
                  </button>
                </div>
              ))}
            </fieldset>
          )}
          <form className="row tight" onSubmit={save}>
            <input
              aria-label="Name of the view"
              placeholder="Name of this view"
              value={name}
              maxLength={60}
              onChange={(event) => setName(event.target.value)}
            />
            <button type="submit" disabled={!name.trim()} title={name.trim() ? undefined : "Enter a name"}>
              Save view
            </button>
          </form>
        </div>
      )}
    </Popover>
  );
}
