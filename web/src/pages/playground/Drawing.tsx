/** Sampling parameters; an empty field uses the model default. */
import type { Sampling } from "./talk";

const FIELDS = [
  ["temperature", "Temperature", { min: 0, max: 100, step: "any" }],
  ["top_p", "Top-p", { min: 0, max: 1, step: "any" }],
  ["max_tokens", "Max tokens", { min: 1, step: 1 }],
  ["seed", "Seed", { min: 0, step: 1 }],
] as const;

export function Drawing({ sampling, onChange }: { sampling: Sampling; onChange: (sampling: Sampling) => void }) {
  return (
    <details className="drawing panel">
      <summary>
        Sampling parameters{" "}
        <span className="muted small num">
          temperature {sampling.temperature || "model default"}, max tokens {sampling.max_tokens || "unlimited"}
          {sampling.seed && `, seed ${sampling.seed}`}
          {sampling.system.trim() && ", system prompt set"}
        </span>
      </summary>
      <div className="fields">
        {FIELDS.map(([name, label, limits]) => (
          <label key={name}>
            <span className="muted small">{label}</span>
            <input
              type="number"
              {...limits}
              value={sampling[name]}
              onChange={(event) => onChange({ ...sampling, [name]: event.target.value })}
            />
          </label>
        ))}
        <label className="system">
          <span className="muted small">System prompt</span>
          <textarea
            rows={2}
            value={sampling.system}
            onChange={(event) => onChange({ ...sampling, system: event.target.value })}
          />
        </label>
      </div>
    </details>
  );
}
