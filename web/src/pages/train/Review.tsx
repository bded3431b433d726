/** Step 4: what runs where, and the memory that it takes. */
import type { Plan } from "../../lib/finetune";
import { ADAPTER_NAMES, METHOD_NAMES } from "../../lib/finetune";
import { Panel } from "../../parts/bits";
import { CheckResult } from "../new/CheckResult";
import type { Check } from "../new/check";

export function Summary({ plan, preset }: { plan: Plan; preset: string | null }) {
  return (
    <Panel title="Run">
      <dl className="facts">
        <dt>Name</dt>
        <dd>{plan.name}</dd>
        <dt>Model</dt>
        <dd>{plan.model || "not chosen"}</dd>
        <dt>Data</dt>
        <dd>{plan.data || "not chosen"}</dd>
        <dt>Method</dt>
        <dd>
          {METHOD_NAMES[plan.method]}, {ADAPTER_NAMES[plan.adapter]}
        </dd>
        <dt>Preset</dt>
        <dd>{preset ?? "own settings"}</dd>
      </dl>
    </Panel>
  );
}

export function ReviewStep({
  plan,
  preset,
  check,
  onName,
}: {
  plan: Plan;
  preset: string | null;
  check: Check;
  onName: (name: string) => void;
}) {
  return (
    <div className="stack">
      <label className="row tight">
        <span className="muted">Name of the run</span>
        <input
          className="grow"
          key={plan.name}
          defaultValue={plan.name}
          maxLength={100}
          onBlur={(event) => event.target.value.trim() && onName(event.target.value.trim())}
        />
      </label>
      <Summary plan={plan} preset={preset} />
      <CheckResult check={check} />
    </div>
  );
}
