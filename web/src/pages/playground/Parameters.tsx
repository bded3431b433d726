/** Sampling presets and parameters, system prompt, and how answers are shown. An empty field uses the model default. */
import { PRESET_HINTS, PRESET_NAMES, PRESETS, type Preset, presetOf, type Sampling } from "../../lib/sampling";

const FIELDS = [
  ["temperature", "Temperature", { min: 0, max: 100, step: "any" }],
  ["top_p", "Top-p", { min: 0, max: 1, step: "any" }],
  ["max_tokens", "Max tokens", { min: 1, step: 1 }],
  ["seed", "Seed", { min: 0, step: 1 }],
] as const;

export interface ChatSettings {
  sampling: Sampling;
  markdown: boolean;
}

export function Parameters({
  settings,
  onChange,
}: {
  settings: ChatSettings;
  onChange: (settings: ChatSettings) => void;
}) {
  const { sampling, markdown } = settings;
  const preset = presetOf(sampling);
  const set = (part: Partial<Sampling>) => onChange({ ...settings, sampling: { ...sampling, ...part } });
  return (
    <div className="stack">
      <fieldset className="choices">
        <legend>Sampling</legend>
        <div className="segments three">
          {(Object.keys(PRESETS) as Preset[]).map((name) => (
            <button
              key={name}
              type="button"
              aria-pressed={name === preset}
              title={PRESET_HINTS[name]}
              onClick={() => set(PRESETS[name])}
            >
              {PRESET_NAMES[name]}
            </button>
          ))}
        </div>
        <p className="muted small">{preset ? PRESET_HINTS[preset] : "Your own values."}</p>
      </fieldset>
      <div className="fields">
        {FIELDS.map(([name, label, limits]) => (
          <label key={name} className="field">
            <span className="muted small">{label}</span>
            <input
              type="number"
              {...limits}
              placeholder={name === "seed" ? "random" : "default"}
              value={sampling[name]}
              onChange={(event) => set({ [name]: event.target.value })}
            />
          </label>
        ))}
      </div>
      <label className="field">
        <span className="muted small">System prompt</span>
        <textarea
          rows={3}
          placeholder="You are a helpful assistant."
          value={sampling.system}
          onChange={(event) => set({ system: event.target.value })}
        />
      </label>
      <label className="row tight small">
        <input
          type="checkbox"
          checked={markdown}
          onChange={(event) => onChange({ ...settings, markdown: event.target.checked })}
        />
        Format Markdown
      </label>
    </div>
  );
}
