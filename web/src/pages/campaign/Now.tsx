/** Current activity: the steps of the open cycle, and the progress of the current step. */
import type { CampaignDetail } from "../../api/schema";
import { amount, doing, STEPS, secondsTo } from "../../lib/campaign";
import { duration, percent } from "../../lib/format";
import { plain } from "../../lib/words";
import { Bar, Panel } from "../../parts/bits";
import { useNow } from "../../parts/clock";

export function Now({ campaign }: { campaign: CampaignDetail }) {
  const now = useNow();
  const { cycle } = campaign;
  if (cycle?.status !== "running")
    return campaign.status === "active" ? <div className="muted">{doing(campaign, now)}</div> : null;
  const steps = campaign.cycle_list.find((each) => each.number === cycle.number)?.steps ?? [];
  const at = STEPS.indexOf(cycle.step);
  const { activity } = cycle;
  const again = secondsTo(cycle.retry_at, now);
  return (
    <Panel
      title={
        <>
          {campaign.status === "active" ? "Now" : "Open"} <span className="muted">cycle {cycle.number}</span>
        </>
      }
    >
      <div className="stack tight">
        <ol className="steps" aria-label="Cycle steps">
          {STEPS.map((name, index) => {
            const step = steps.find((each) => each.name === name);
            const tone = step?.status === "failed" || (index === at && cycle.error) ? "bad" : index < at ? "good" : "";
            return (
              <li
                key={name}
                className={index === at ? `now ${tone}` : tone}
                aria-current={index === at ? "step" : undefined}
                title={step?.finished_at ? took(step.begun_at, step.finished_at) : undefined}
              >
                {name}
              </li>
            );
          })}
        </ol>
        {activity && (
          <div className="progress" data-activity>
            <div className="row between tight">
              <span>
                {plain(activity.what)}
                {activity.of && <span className="muted"> {activity.of}</span>}
              </span>
              <span className="num muted">{amount(activity)}</span>
            </div>
            {!!activity.total && <Bar value={percent(activity.done ?? 0, activity.total)} label={activity.what} />}
          </div>
        )}
        {cycle.error ? (
          <div className="wrap bad-text">
            {cycle.error}
            {again > 0 && <span className="muted"> Next retry in {duration(again)}.</span>}
          </div>
        ) : (
          cycle.waiting && (
            <div className="muted">
              {cycle.waiting}
              {again > 0 && `; next check in ${duration(again)}`}
            </div>
          )
        )}
      </div>
    </Panel>
  );
}

function took(from: string, to: string): string {
  return duration((Date.parse(to) - Date.parse(from)) / 1000);
}
