/** Errors in a data file, by line. */
import type { DatasetLook } from "../../api/schema";
import { number } from "../../lib/format";

export function Faults({ look }: { look: DatasetLook }) {
  const { faults, fault_count } = look;
  if (!fault_count) return null;
  const more = fault_count - faults.length;
  const hints = [...new Set(faults.map((each) => each.hint).filter((hint) => !!hint))];
  return (
    <section className="panel bad" aria-label="Errors">
      <header>
        <h2>
          {fault_count === 1 ? "1 error" : `${number(fault_count)} errors`} in {look.file}
        </h2>
      </header>
      <div className="body stack tight">
        <ul>
          {faults.map((each) => (
            <li key={`${each.line} ${each.message}`}>{each.message}</li>
          ))}
        </ul>
        {more > 0 && <div className="muted">and {number(more)} more</div>}
        {hints.map((hint) => (
          <div key={hint} className="muted small">
            {hint}
          </div>
        ))}
      </div>
    </section>
  );
}
