/** Fields of the configurations that differ, or all of them. */
import { useState } from "react";
import { type Field, fieldText } from "../../lib/compare";
import { Panel } from "../../parts/bits";
import type { Run } from "../Compare";

export function Differences({ runs, fields }: { runs: readonly Run[]; fields: readonly Field[] }) {
  const [all, setAll] = useState(false);
  const shown = fields.filter((field) => all || field.differs);
  return (
    <Panel
      title={all ? "Configuration" : "Configuration differences"}
      actions={
        <button type="button" className="quiet" aria-pressed={all} onClick={() => setAll(!all)}>
          All fields
        </button>
      }
      flush
    >
      {shown.length === 0 ? (
        <p className="muted quiet-note">The configurations are equal.</p>
      ) : (
        <div className="sideways" tabIndex={runs.length > 4 ? 0 : undefined} role="region" aria-label="Configuration">
          <table className="results">
            <thead>
              <tr>
                <th scope="col">Field</th>
                {runs.map((run) => (
                  <th key={run.task.id} scope="col">
                    <i className="swatch" style={{ background: run.color }} />
                    {run.label}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {shown.map((field) => (
                <tr key={field.path} className={all && field.differs ? "differs" : undefined}>
                  <th scope="row" title={field.path}>
                    {field.name}
                  </th>
                  {field.values.map((value, at) => (
                    <td key={runs[at]?.task.id} className="num-left">
                      {value === undefined ? <span className="muted">–</span> : fieldText(value)}
                    </td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </Panel>
  );
}
