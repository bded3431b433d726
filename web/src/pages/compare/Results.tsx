/** The compared runs with their best values; the best of each metric is marked. */

import { Link } from "@tanstack/react-router";
import { useState } from "react";
import { type Measured, MOST_CURVES } from "../../lib/compare";
import { duration, number, ranSeconds } from "../../lib/format";
import { metricName } from "../../lib/metrics";
import { lowerIsBetter } from "../../lib/runcolumns";
import { serverNow } from "../../lib/servertime";
import { Panel, Status } from "../../parts/bits";
import type { Run } from "../Compare";
import { Tags } from "../tasks/Cells";

export function Results({
  runs,
  measured,
  onDraw,
}: {
  runs: readonly Run[];
  measured: readonly Measured[];
  onDraw: (id: string, on: boolean) => void;
}) {
  const [sort, setSort] = useState<{ name: string; up: boolean } | null>(null);
  const column = measured.find(({ name }) => name === sort?.name);
  const order = runs.map((_, at) => at);
  if (column && sort) order.sort((a, b) => compared(column.values[a], column.values[b], sort.up));
  const full = runs.filter((run) => run.drawn).length >= MOST_CURVES;
  const tagged = runs.some((run) => run.task.tags?.length);
  return (
    <Panel
      title={
        <>
          Results <span className="muted small">best value of each run</span>
        </>
      }
      flush
    >
      <div className="sideways" tabIndex={runs.length > 12 ? 0 : undefined} role="region" aria-label="Results">
        <table className="results">
          <thead>
            <tr>
              <th scope="col">Run</th>
              <th scope="col">Status</th>
              {measured.map(({ name }) => (
                <th
                  key={name}
                  scope="col"
                  className="num"
                  aria-sort={sort?.name === name ? (sort.up ? "ascending" : "descending") : undefined}
                >
                  <button
                    type="button"
                    title={hintOf(name)}
                    onClick={() =>
                      setSort({ name, up: sort?.name === name ? !sort.up : (lowerIsBetter(name) ?? false) })
                    }
                  >
                    {metricName(name)} {sort?.name === name ? (sort.up ? "↑" : "↓") : ""}
                  </button>
                </th>
              ))}
              <th scope="col" className="num">
                Duration
              </th>
              {tagged && <th scope="col">Tags</th>}
            </tr>
          </thead>
          <tbody>
            {order
              .map((at) => [runs[at] as Run, at] as const)
              .map(([run, at]) => (
                <tr key={run.task.id}>
                  <th scope="row">
                    <span className="row tight nowrap run">
                      <input
                        type="checkbox"
                        aria-label={`Show the curves of ${run.label}`}
                        title={full && !run.drawn ? `At most ${MOST_CURVES} runs have curves` : "Show curves"}
                        checked={run.drawn}
                        disabled={full && !run.drawn}
                        onChange={(event) => onDraw(run.task.id, event.target.checked)}
                      />
                      <i className="swatch" style={{ background: run.color }} />
                      <Link to="/tasks/$taskId" params={{ taskId: run.task.id }} className="strong">
                        {run.label}
                      </Link>
                    </span>
                  </th>
                  <td>
                    <Status status={run.task.status} />
                  </td>
                  {measured.map(({ name, values, best }) => (
                    <td key={name} className={best.has(at) ? "num best" : "num"}>
                      {values[at] === undefined ? <span className="muted">–</span> : number(values[at])}
                      {best.has(at) && <span className="hidden"> (best)</span>}
                    </td>
                  ))}
                  <td className="num">{duration(ranSeconds(run.task, serverNow()))}</td>
                  {tagged && (
                    <td>
                      <Tags tags={run.task.tags ?? []} />
                    </td>
                  )}
                </tr>
              ))}
          </tbody>
        </table>
      </div>
    </Panel>
  );
}

/** Runs without a value come last in both directions. */
function compared(a: number | undefined, b: number | undefined, up: boolean): number {
  if (a === undefined || b === undefined) return Number(a === undefined) - Number(b === undefined);
  return up ? a - b : b - a;
}

function hintOf(name: string): string {
  const lower = lowerIsBetter(name);
  return lower === null ? "Latest value" : `Best value; ${lower ? "lower" : "higher"} is better`;
}
