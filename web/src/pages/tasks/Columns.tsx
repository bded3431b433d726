/** Chooses the columns of the runs table: fixed ones, and any metric of the loaded runs. */
import { useState } from "react";
import type { TaskView } from "../../api/schema";
import { DEFAULT_COLUMNS, FIXED, metricColumns, type RunColumn } from "../../lib/runcolumns";
import { Popover } from "../../parts/Popover";

interface Props {
  chosen: readonly string[];
  onChange: (to: string[]) => void;
  tasks: readonly TaskView[];
}

export function Columns(props: Props) {
  return <Popover label="Columns">{() => <Choice {...props} />}</Popover>;
}

function Choice({ chosen, onChange, tasks }: Props) {
  const [typed, setTyped] = useState("");
  const fits = ({ label }: RunColumn) => label.toLowerCase().includes(typed.trim().toLowerCase());
  const fixed = FIXED.filter((each) => each.id !== "name" && fits(each));
  const metrics = metricColumns(tasks, chosen).filter(fits);
  const toggle = (id: string) => {
    const on = new Set(chosen);
    if (!on.delete(id)) on.add(id);
    // Metrics are placed before the duration, next to the losses.
    const known = FIXED.map((each) => each.id);
    const at = known.indexOf("ran");
    const all = [...known.slice(0, at), ...metricColumns(tasks, [...on]).map((each) => each.id), ...known.slice(at)];
    onChange(all.filter((each) => on.has(each)));
  };
  const box = ({ id, label }: RunColumn) => (
    <label key={id} className="row tight">
      <input type="checkbox" checked={chosen.includes(id)} onChange={() => toggle(id)} />
      {label}
    </label>
  );
  return (
    <div className="stack">
      <input
        type="search"
        aria-label="Find a column"
        placeholder="Find a column or metric"
        value={typed}
        onChange={(event) => setTyped(event.target.value)}
      />
      {fixed.length > 0 && <div className="options">{fixed.map(box)}</div>}
      {metrics.length > 0 && (
        <fieldset className="plain options">
          <legend className="muted small">Metrics of the loaded runs</legend>
          {metrics.map(box)}
        </fieldset>
      )}
      {fixed.length + metrics.length === 0 && <span className="muted">No such column</span>}
      <div>
        <button
          type="button"
          className="quiet"
          disabled={chosen.join() === DEFAULT_COLUMNS.join()}
          onClick={() => onChange([...DEFAULT_COLUMNS])}
        >
          Reset columns
        </button>
      </div>
    </div>
  );
}
