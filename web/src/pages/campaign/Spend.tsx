/** Spend of the campaign against its budget, and for each cycle. */
import type { CampaignDetail, CycleView } from "../../api/schema";
import { number, percent } from "../../lib/format";
import { Bar, Panel } from "../../parts/bits";

const LIMITS: readonly (readonly [string, (value: string) => string])[] = [
  ["cost_per_task", (value) => `${value} per task`],
  ["cost_per_second", (value) => `${value} per second of training`],
  ["cost_per_merge_second", (value) => `${value} per second of merging`],
  ["max_tasks_per_day", (value) => `at most ${value} tasks per day`],
  ["max_failures", (value) => `pauses after ${value} consecutive failures`],
];

export function Spend({ campaign, cycles }: { campaign: CampaignDetail; cycles: readonly CycleView[] }) {
  const budget = (campaign.spec.budget ?? {}) as Record<string, unknown>;
  const most = typeof budget.max_cost === "number" ? budget.max_cost : null;
  const dearest = Math.max(...cycles.map((each) => each.cost), 0);
  const limits = LIMITS.filter(([key]) => typeof budget[key] === "number" && budget[key] !== 0);
  return (
    <Panel title="Spent">
      <div className="stack tight">
        <div className="row between tight">
          <strong className="num">{number(campaign.spent)}</strong>
          <span className="muted num">{most == null ? "no limit" : `of ${number(most)}`}</span>
        </div>
        {most != null && (
          <Bar
            value={percent(campaign.spent, most)}
            label="Budget spent"
            tone={campaign.spent > 0.9 * most ? "warn" : undefined}
          />
        )}
        {dearest > 0 && (
          <ul className="columns-chart" aria-label="Cost per cycle">
            {[...cycles].reverse().map((each) => (
              <li key={each.number} title={`cycle ${each.number}: ${number(each.cost)}`}>
                <i style={{ height: `${(100 * each.cost) / dearest}%` }} />
                <span className="hidden">
                  cycle {each.number}: {number(each.cost)}
                </span>
              </li>
            ))}
          </ul>
        )}
        {limits.length > 0 && (
          <div className="muted small num">
            {limits.map(([key, text]) => text(number(budget[key] as number))).join(" · ")}
          </div>
        )}
      </div>
    </Panel>
  );
}
