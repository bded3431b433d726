/** Timeline of the cycles, and a table with their results. */
import { Link } from "@tanstack/react-router";
import type { CycleView } from "../../api/schema";
import { gateOf, STEPS, tookSeconds } from "../../lib/campaign";
import { duration, localTime, number } from "../../lib/format";
import { bandOf, type Span, spanOf } from "../../lib/span";
import { Status, Time } from "../../parts/bits";
import { useNow } from "../../parts/clock";
import { Lane, Lanes, Scrolls } from "../../parts/Lanes";
import { interval } from "../../parts/Plot";

const SHOWN = 24;
const TONES: Record<string, string> = { completed: "good", running: "busy", failed: "bad", abandoned: "weak" };

/** `live`: the time axis reaches to now. */
export function Cycles({
  cycles,
  chosen,
  live,
}: {
  cycles: readonly CycleView[];
  chosen: number | undefined;
  live: boolean;
}) {
  const now = useNow();
  const shown = cycles.slice(0, SHOWN).reverse();
  const steps = shown.flatMap((each) => each.steps.map((step) => step.finished_at ?? step.begun_at));
  const times = [...shown.flatMap((each) => [each.opened_at, each.finished_at]), ...steps];
  const span = spanOf(times, live ? now : undefined);
  return (
    <div className="stack">
      {span && (
        <Lanes span={span} label="Cycle timeline" live={live}>
          <Lane name="cycle" tall>
            {shown.map((each) => (
              <Band key={each.number} cycle={each} span={span} chosen={each.number === chosen} />
            ))}
          </Lane>
        </Lanes>
      )}
      <Scrolls label="Cycles">
        <Table cycles={cycles} chosen={chosen} />
      </Scrolls>
    </div>
  );
}

function Band({ cycle, span, chosen }: { cycle: CycleView; span: Span; chosen: boolean }) {
  const gate = gateOf(cycle);
  const about = [
    `Cycle ${cycle.number}: ${cycle.status}`,
    cycle.status === "completed" ? null : `at ${cycle.step}`,
    gate && (gate.passed ? "gate passed" : "gate not passed"),
    `opened ${localTime(cycle.opened_at)}`,
    cycle.error,
  ]
    .filter(Boolean)
    .join(", ");
  const tone = gate && !gate.passed && cycle.status === "completed" ? "" : (TONES[cycle.status] ?? "");
  return (
    <Link
      className={`band ${tone} ${chosen ? "chosen" : ""}`}
      style={bandOf(span, cycle.opened_at, cycle.finished_at)}
      title={about}
      aria-label={about}
      aria-current={chosen ? "true" : undefined}
      to="/campaigns/$name"
      params={(old) => ({ name: old.name ?? "" })}
      search={{ cycle: cycle.number }}
      replace
      resetScroll={false}
    >
      <span>{cycle.number}</span>
    </Link>
  );
}

function Table({ cycles, chosen }: { cycles: readonly CycleView[]; chosen: number | undefined }) {
  return (
    <table className="bare">
      <thead>
        <tr>
          <th>Cycle</th>
          <th>Status</th>
          <th className="hide-phone">Steps</th>
          <th>Gate</th>
          <th className="num hide-phone">Cost</th>
          <th className="num hide-phone">Duration</th>
          <th className="hide-phone">Opened</th>
        </tr>
      </thead>
      <tbody>
        {cycles.map((each) => (
          <tr key={each.number} className={each.number === chosen ? "chosen" : undefined}>
            <td>
              <Link
                to="/campaigns/$name"
                params={(old) => ({ name: old.name ?? "" })}
                search={{ cycle: each.number }}
                replace
                resetScroll={false}
                aria-current={each.number === chosen ? "true" : undefined}
                className="strong nowrap"
              >
                cycle {each.number}
              </Link>
            </td>
            <td>
              <Status status={each.status} />
              {each.status !== "completed" && <span className="muted small"> at {each.step}</span>}
            </td>
            <td className="hide-phone">
              <Steps cycle={each} />
            </td>
            <td>
              <Gate cycle={each} />
            </td>
            <td className="num hide-phone">{each.cost ? number(each.cost) : "–"}</td>
            <td className="num hide-phone nowrap">
              <Took cycle={each} />
            </td>
            <td className="muted nowrap hide-phone">
              <Time at={each.opened_at} relative />
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

/** Share of the cycle that each step took. */
function Steps({ cycle }: { cycle: CycleView }) {
  return (
    <div className="strip" role="img" aria-label={`Steps up to ${cycle.step}`}>
      {cycle.steps.map((step) => {
        const seconds = step.finished_at ? tookSeconds(step.begun_at, step.finished_at, 0) : 0;
        const tone = step.finished_at
          ? `step-${STEPS.indexOf(step.name) % 3}`
          : step.status === "failed"
            ? "bad"
            : "now";
        return (
          <i
            key={step.name}
            className={tone}
            style={{ flexGrow: seconds }}
            title={`${step.name}: ${step.finished_at ? duration(seconds) : step.status}`}
          />
        );
      })}
    </div>
  );
}

function Gate({ cycle }: { cycle: CycleView }) {
  const gate = gateOf(cycle);
  if (!gate) return <span className="muted">–</span>;
  const last = Object.entries(gate.against).at(-1);
  return (
    <span title={gate.reason}>
      <Status status={gate.passed ? "completed" : "skipped"} note={gate.passed ? "promoted" : "not promoted"} />
      {last && last[1].low != null && last[1].high != null && (
        <span className="muted small num hide-phone">
          {" "}
          {number(last[1].value)} {interval(last[1].low, last[1].high)} better than the {last[0]}
        </span>
      )}
    </span>
  );
}

function Took({ cycle }: { cycle: CycleView }) {
  return <>{duration(tookSeconds(cycle.opened_at, cycle.finished_at, useNow()))}</>;
}
