/** Step 3: method, preset, and the settings behind it. */
import { useQuery } from "@tanstack/react-query";
import { parse } from "yaml";
import { schemaQuery } from "../../api/queries_data";
import type { FaultView } from "../../api/schema";
import { changed, commonFields, trainingTasksIn, typedValue } from "../../lib/common";
import {
  ADAPTER_HINTS,
  ADAPTER_NAMES,
  ADAPTERS,
  type Adapter,
  METHOD_HINTS,
  METHOD_NAMES,
  type Method,
  methodsFor,
  type Plan,
  PRESET_HINTS,
  PRESETS,
  type Preset,
} from "../../lib/finetune";
import { fieldsAt, type SchemaNode } from "../../lib/schema";
import { plain } from "../../lib/words";

export function MethodStep({
  plan,
  kind,
  preset,
  text,
  faults,
  onMethod,
  onText,
  onAsChat,
}: {
  plan: Plan;
  kind: string | null;
  preset: Preset | null;
  text: string;
  faults: readonly FaultView[];
  onMethod: (method: Method, adapter: Adapter, preset: Preset) => void;
  onText: (text: string) => void;
  onAsChat: (wanted: boolean) => void;
}) {
  const methods = kind === null ? [plan.method] : methodsFor(kind);
  const shown = methods.includes(plan.method) ? methods : [plan.method, ...methods];
  const chosen = preset ?? "balanced";
  return (
    <div className="stack">
      <Choices
        label="Method"
        items={shown.map((each) => [each, METHOD_NAMES[each], METHOD_HINTS[each]] as const)}
        chosen={plan.method}
        onChoose={(method) => onMethod(method, plan.adapter, chosen)}
      />
      {plan.asChat !== null && (
        <label className="row tight">
          <input type="checkbox" checked={plan.asChat} onChange={(event) => onAsChat(event.target.checked)} />
          <span>
            Use the model's chat template{" "}
            <span className="muted small">
              for instruct models: train the rows in the format that the model uses in a chat
            </span>
          </span>
        </label>
      )}
      <Choices
        label="Weights"
        items={ADAPTERS.map((each) => [each, ADAPTER_NAMES[each], ADAPTER_HINTS[each]] as const)}
        chosen={plan.adapter}
        onChoose={(adapter) => onMethod(plan.method, adapter, chosen)}
      />
      <Choices
        label="Preset"
        items={PRESETS.map((each) => [each, each.charAt(0).toUpperCase() + each.slice(1), PRESET_HINTS[each]] as const)}
        chosen={preset}
        onChoose={(each) => onMethod(plan.method, plan.adapter, each)}
      />
      {/* Always one line: a button must not move away under the click that ends an edit. */}
      <p className="muted small">
        {preset === null
          ? "Settings were changed by hand; a preset replaces them."
          : "A preset replaces all settings below."}
      </p>
      <details open={preset === null}>
        <summary>Advanced settings</summary>
        <Advanced text={text} faults={faults} onText={onText} />
      </details>
    </div>
  );
}

function Choices<T extends string>({
  label,
  items,
  chosen,
  onChoose,
}: {
  label: string;
  items: readonly (readonly [T, string, string])[];
  chosen: T | null;
  onChoose: (value: T) => void;
}) {
  return (
    <fieldset className="choices">
      <legend>{label}</legend>
      <div className="option-grid three">
        {items.map(([value, name, hint]) => (
          <label key={value} className="option">
            <span className="row tight">
              <input type="radio" name={label} checked={chosen === value} onChange={() => onChoose(value)} />
              <strong>{name}</strong>
            </span>
            <span className="muted small">{hint}</span>
          </label>
        ))}
      </div>
    </fieldset>
  );
}

const MORE = [
  "num_train_epochs",
  "max_steps",
  "batch_size",
  "gradient_accumulation_steps",
  "learning_rate",
  "lr_scheduler_type",
  "warmup_ratio",
  "weight_decay",
  "max_seq_length",
  "seed",
  "save_steps",
  "eval_strategy",
] as const;
const OF_LORA = ["r", "alpha", "dropout", "target_modules"] as const;

/** Fields with the texts of the schema; an error of the check stands at its field. */
function Advanced({
  text,
  faults,
  onText,
}: {
  text: string;
  faults: readonly FaultView[];
  onText: (text: string) => void;
}) {
  const schema = useQuery(schemaQuery);
  const [training] = trainingTasksIn(text);
  if (!training) return null;
  const common = commonFields(text, training);
  const about = (block: string, name: string) =>
    schema.data
      ? (fieldsAt(schema.data as SchemaNode, { path: ["spec", block], taskType: training.kind }).find(
          (each) => each.name === name,
        )?.about ?? "")
      : "";
  const adapts = common.some((each) => each.group === "LoRA");
  const document = parse(text) as { spec?: Record<string, Record<string, unknown>> };
  const blocks = [["training", MORE] as const, ...(adapts ? [["lora", OF_LORA] as const] : [])];
  return (
    <div className="advanced">
      {blocks.flatMap(([block, names]) =>
        names.map((name) => {
          const value = document.spec?.[block]?.[name];
          const fault = faults.find((each) => each.path.endsWith(`${block}.${name}`));
          const id = `${block}-${name}`;
          return (
            <div key={id} className="stack tight">
              <label htmlFor={id}>{plain(block === "lora" ? `LoRA ${name}` : name)}</label>
              <input
                key={`${id} ${String(value)}`}
                id={id}
                defaultValue={value === undefined || value === null ? "" : String(value)}
                placeholder="default"
                aria-invalid={fault ? true : undefined}
                aria-describedby={`${id}-about`}
                onBlur={(event) => {
                  const typed = event.target.value.trim();
                  if (typed === (value === undefined || value === null ? "" : String(value))) return;
                  onText(changed(text, ["spec", block, name], typedValue(typed)));
                }}
                onKeyDown={(event) => event.key === "Enter" && event.currentTarget.blur()}
              />
              <span id={`${id}-about`} className={fault ? "fault small" : "muted small"}>
                {fault ? `${fault.message}${fault.hint ? ` · ${fault.hint}` : ""}` : about(block, name)}
              </span>
            </div>
          );
        }),
      )}
    </div>
  );
}
