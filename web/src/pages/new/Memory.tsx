/** Memory estimate of the run as configured, and with other settings. */
import type { MemoryForecast, MemoryVariant, TaskForecast } from "../../api/schema";
import { bytes, percent } from "../../lib/format";
import { Panel } from "../../parts/bits";

const NAMES: Record<MemoryVariant["name"], string> = {
  whole: "full fine-tune",
  adapter: "LoRA",
  adapter_8bit: "LoRA, 8-bit base",
  adapter_4bit: "LoRA, 4-bit base",
};
const PARTS = [
  ["weights", "weights", (each: MemoryVariant) => each.weights_bytes],
  ["optimizer", "gradients and optimizer", (each: MemoryVariant) => each.gradients_bytes + each.optimizer_bytes],
  ["activations", "activations and logits", (each: MemoryVariant) => each.activations_bytes + each.logits_bytes],
] as const;

export function Memory({ forecast }: { forecast: TaskForecast }) {
  const { memory } = forecast;
  if (!memory) return null;
  return (
    <Panel title="Estimated peak memory" actions={<span className="muted small">estimated</span>}>
      {memory.unknown ? <p className="muted small">{memory.unknown}</p> : <Variants memory={memory} />}
    </Panel>
  );
}

function Variants({ memory }: { memory: MemoryForecast }) {
  const variants = memory.variants ?? [];
  const most = Math.max(...variants.map((each) => each.total_bytes), 1);
  const written = variants.find((each) => each.as_written);
  const available = memory.available_bytes;
  const short = !!available && !!written && written.total_bytes > available;
  return (
    <div className="stack tight">
      <ul className="memory">
        {variants.map((each) => (
          <li key={each.name} className={each.as_written ? "written" : undefined} data-variant={each.name}>
            <span className="cut">{NAMES[each.name]}</span>
            <span className="stacked" aria-hidden="true">
              {PARTS.map(([name, label, size]) => (
                <i
                  key={name}
                  className={name}
                  title={`${label}: ${bytes(size(each))}`}
                  style={{ width: `${percent(size(each), most)}%` }}
                />
              ))}
            </span>
            <span className="num" data-bytes={each.total_bytes}>
              {bytes(each.total_bytes)}
            </span>
          </li>
        ))}
      </ul>
      <div className="row facts-line small muted">
        {PARTS.map(([name, label]) => (
          <span key={name}>
            <i className={`swatch ${name}`} />
            {label}
          </span>
        ))}
      </div>
      <p className={short ? "note small" : "small muted"}>
        {memory.compute} ·{" "}
        {memory.trained != null && memory.weights != null && (
          <>
            {millions(memory.trained)} of {millions(memory.weights)} trainable parameters ·{" "}
          </>
        )}
        {available && memory.worker_id
          ? `${memory.worker_id} has ${bytes(available)}${memory.device === "gpu" ? " of GPU memory" : " of memory, no GPU"}${short ? ": does not fit" : ""}`
          : "no eligible worker"}
      </p>
    </div>
  );
}

function millions(count: number): string {
  if (count >= 1e9) return `${(count / 1e9).toPrecision(3)} B`;
  return count >= 1e6 ? `${(count / 1e6).toPrecision(3)} M` : count.toLocaleString("en-US");
}
