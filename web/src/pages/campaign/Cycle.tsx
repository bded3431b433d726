/** The chosen cycle: gate decision with its metrics, steps, and tracker reports. */
import type { CampaignDetail, CycleView } from "../../api/schema";
import {
  conditionsOf,
  type GateResult,
  gateOf,
  type Interval,
  measuredOf,
  outcome,
  tookSeconds,
} from "../../lib/campaign";
import { duration, number } from "../../lib/format";
import { Panel, Status, Time } from "../../parts/bits";
import { useNow } from "../../parts/clock";
import { interval } from "../../parts/Plot";
import { Retry } from "./Actions";

export function Cycle({ campaign, cycle }: { campaign: CampaignDetail; cycle: CycleView }) {
  return (
    <Panel
      title={
        <>
          Cycle {cycle.number} <span className="muted">chunk {cycle.position}</span>
        </>
      }
      actions={
        <>
          <Status status={cycle.status} />
          {cycle.status === "failed" && <Retry campaign={campaign} cycle={cycle.number} label="Retry" />}
        </>
      }
    >
      <div className="stack">
        {cycle.error && <div className="fault wrap">{cycle.error}</div>}
        <Decision cycle={cycle} />
        <Steps cycle={cycle} />
        {(cycle.tracking ?? []).map((each) => (
          <div key={each.tracker} className="small wrap">
            <span className="muted">{each.tracker}:</span> {each.told_at ? each.place : (each.error ?? "reporting")}
          </div>
        ))}
      </div>
    </Panel>
  );
}

function Decision({ cycle }: { cycle: CycleView }) {
  const gate = gateOf(cycle);
  const evaluation = outcome(cycle.steps, "evaluate");
  if (!evaluation.metric) return null;
  const task = (outcome(cycle.steps, "select").evaluation as { task_id?: string } | undefined)?.task_id;
  return (
    <div className="stack tight" data-gate>
      {gate && (
        <div>
          <Status
            status={gate.passed ? "completed" : "skipped"}
            note={gate.passed ? "gate passed" : "gate not passed"}
          />
          <div className="small">{gate.reason}</div>
        </div>
      )}
      <table className="bare small">
        {conditionsOf(cycle).map(({ metric, against }) => (
          <Condition key={metric} metric={metric} against={against} measured={measuredOf(evaluation, task, metric)} />
        ))}
      </table>
    </div>
  );
}

function Condition({
  metric,
  against,
  measured,
}: {
  metric: string;
  against?: GateResult["against"];
  measured: ReturnType<typeof measuredOf>;
}) {
  return (
    <>
      <thead>
        <tr>
          <th>{metric}</th>
          <th className="num">Metric</th>
          <th className="num">Improvement</th>
        </tr>
      </thead>
      <tbody>
        <Measured name="candidate" found={measured.chosen} />
        <Measured name="promoted" found={measured.promoted} gain={against?.promoted} />
        <Measured name="base" found={measured.base} gain={against?.base} />
      </tbody>
    </>
  );
}

function Measured({ name, found, gain }: { name: string; found: Interval | null; gain?: Interval }) {
  if (!found) return null;
  return (
    <tr>
      <td>{name}</td>
      <td className="num">
        <Value of={found} />
      </td>
      <td className="num">{gain && <Value of={gain} />}</td>
    </tr>
  );
}

function Value({ of }: { of: Interval }) {
  return (
    <>
      {number(of.value)}
      {of.low != null && of.high != null && <div className="muted">{interval(of.low, of.high)}</div>}
    </>
  );
}

function Steps({ cycle }: { cycle: CycleView }) {
  const now = useNow();
  return (
    <table className="bare small dense">
      <thead>
        <tr>
          <th>Step</th>
          <th>Started</th>
          <th className="num">Duration</th>
        </tr>
      </thead>
      <tbody>
        {cycle.steps.map((step) => (
          <tr key={step.name}>
            <td>
              <Status
                status={step.status === "done" ? "completed" : step.status === "failed" ? "failed" : "running"}
                note={step.name}
              />
              {step.error && <div className="muted wrap">{step.error}</div>}
            </td>
            <td className="muted nowrap">
              <Time at={step.begun_at} />
            </td>
            <td className="num">{duration(tookSeconds(step.begun_at, step.finished_at, now))}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
