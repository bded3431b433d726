/** Errors of a workflow file, or the placement of its tasks by worker. */
import type { FaultView, TaskForecast, WorkerVerdict } from "../../api/schema";
import { Panel } from "../../parts/bits";
import { Failed, Loading } from "../../parts/states";
import type { Check } from "./check";

const WORKERS_SHOWN = 12;

export function CheckResult({ check }: { check: Check }) {
  if (check.faults.length > 0) return <Faults faults={check.faults} />;
  if (check.error) return <Failed error={check.error} />;
  return (
    <Panel title="Placement" actions={check.busy && <span className="muted small">Checking …</span>}>
      {check.warnings.map((warning) => (
        <p key={warning} className="note">
          {warning}
        </p>
      ))}
      {check.concurrency && (
        <p className={check.concurrency.available < check.concurrency.wanted ? "note" : "small muted"}>
          {check.concurrency.summary}
        </p>
      )}
      {check.forecasts.length === 0 ? (
        <Loading rows={1} />
      ) : (
        <ul className="stack">
          {check.forecasts.map((each) => (
            <Place key={each.name} forecast={each} open={check.forecasts.length === 1} />
          ))}
        </ul>
      )}
    </Panel>
  );
}

function Faults({ faults }: { faults: readonly FaultView[] }) {
  return (
    <section className="panel bad" aria-label="Errors">
      <header>
        <h2>{faults.length === 1 ? "1 error" : `${faults.length} errors`}</h2>
      </header>
      <ul className="body stack">
        {faults.map((fault) => (
          <li key={`${fault.path} ${fault.message}`}>
            <div>{fault.message}</div>
            <div className="muted small">
              {!!fault.line && `line ${fault.line}, column ${fault.column} · `}
              {fault.path}
              {fault.hint && ` · ${fault.hint}`}
            </div>
          </li>
        ))}
      </ul>
    </section>
  );
}

function Place({ forecast, open }: { forecast: TaskForecast; open: boolean }) {
  const workers = forecast.workers ?? [];
  return (
    <li>
      <div>
        <strong>{forecast.name}</strong> <span className="muted">{forecast.kind}</span>
      </div>
      <div className="small muted">
        {forecast.worker_id ? `on ${selected(forecast)}, now` : (forecast.why ?? "no worker free")}
        {!!forecast.after?.length && ` · after ${forecast.after.join(", ")}`}
      </div>
      {workers.length > 0 && (
        <details open={open} className="small">
          <summary className="muted">{workers.length === 1 ? "1 worker" : `${workers.length} workers`}</summary>
          <ul className="placements">
            {workers.slice(0, WORKERS_SHOWN).map((each) => (
              <Worker key={each.worker_id} placement={each} />
            ))}
          </ul>
          {workers.length > WORKERS_SHOWN && <span className="muted">and {workers.length - WORKERS_SHOWN} more</span>}
        </details>
      )}
    </li>
  );
}

/** The workers of a task; of several parts or nodes, also how many start. */
function selected(forecast: TaskForecast): string {
  const ids = forecast.worker_ids ?? [];
  if (!forecast.max_workers || forecast.max_workers === 1) return forecast.worker_id ?? "";
  return `${[...new Set(ids)].join(", ")}: ${ids.length} of ${forecast.max_workers} at the same time`;
}

const WORDS = { fits: "eligible", waits: "busy", never: "not eligible" } as const;
const TONES = { fits: "completed", waits: "paused", never: "failed" } as const;

function Worker({ placement }: { placement: WorkerVerdict }) {
  return (
    <li>
      <span className={`status ${TONES[placement.verdict]}`}>{WORDS[placement.verdict]}</span>
      <span>
        {placement.worker_id} <span className="muted">{placement.reason ?? ""}</span>
      </span>
    </li>
  );
}
