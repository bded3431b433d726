/** Common fields of a training task next to the editor; both edit the same text. */
import { useId, useState } from "react";
import {
  type Common,
  changed,
  commonFields,
  PRECISION,
  precision,
  quantized,
  trainingTasksIn,
  typedValue,
} from "../../lib/common";
import { Panel } from "../../parts/bits";

export function Form({ text, onChange }: { text: string; onChange: (text: string) => void }) {
  const runs = trainingTasksIn(text);
  const [named, setNamed] = useState<string | null>(null);
  const training = runs.find((each) => each.name === named) ?? runs[0];
  if (!training) return null;
  const fields = commonFields(text, training);
  const bits = precision(text, training);
  return (
    <Panel
      title="Common fields"
      actions={
        runs.length > 1 && (
          <select aria-label="Task" value={training.name} onChange={(event) => setNamed(event.target.value)}>
            {runs.map((each) => (
              <option key={each.name} value={each.name}>
                {each.name}
              </option>
            ))}
          </select>
        )
      }
    >
      <div className="form narrow">
        {fields
          .filter((each) => each.group !== "Base model")
          .map((field) => (
            <Field key={field.label} field={field} onChange={(value) => onChange(changed(text, field.path, value))} />
          ))}
        {bits !== null && (
          <label>
            <span className="muted">Quantization</span>
            <select value={bits} onChange={(event) => onChange(quantized(text, training, event.target.value))}>
              {PRECISION.map(([value, name]) => (
                <option key={value} value={value}>
                  {name}
                </option>
              ))}
            </select>
          </label>
        )}
        {fields
          .filter((each) => each.group === "Base model")
          .map((field) => (
            <Field key={field.label} field={field} onChange={(value) => onChange(changed(text, field.path, value))} />
          ))}
      </div>
    </Panel>
  );
}

function Field({ field, onChange }: { field: Common; onChange: (value: unknown) => void }) {
  const value = field.value == null ? "" : String(field.value);
  return (
    <label>
      <span className="muted">{field.label}</span>
      {field.choices ? (
        <select value={value} onChange={(event) => onChange(typedValue(event.target.value))}>
          {field.choices.map(([each, name]) => (
            <option key={each} value={each}>
              {name}
            </option>
          ))}
        </select>
      ) : (
        <Written key={value} field={field} value={value} onChange={onChange} />
      )}
    </label>
  );
}

function Written({ field, value, onChange }: { field: Common; value: string; onChange: (value: unknown) => void }) {
  const list = useId();
  return (
    <>
      <input
        defaultValue={value}
        list={field.suggestions && list}
        onBlur={(event) => {
          const typed = event.target.value.trim();
          if (typed !== value) onChange(field.list ? several(typed) : typedValue(typed));
        }}
        onKeyDown={(event) => {
          if (event.key === "Enter") event.currentTarget.blur();
        }}
      />
      {field.suggestions && (
        <datalist id={list}>
          {field.suggestions.map((each) => (
            <option key={each} value={each} />
          ))}
        </datalist>
      )}
    </>
  );
}

function several(typed: string): unknown {
  const names = typed.split(/[\s,]+/).filter(Boolean);
  return names.length === 1 && names[0] === "all-linear" ? names[0] : names.length ? names : null;
}
