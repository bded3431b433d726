/** A timeline: lanes over one time axis. `lib/span` positions their items. */
import type { ReactNode } from "react";
import { placeOf, type Span, ticksOf, tickText } from "../lib/span";

const TICKS = 6;

export function Lanes({ span, label, children }: { span: Span; label: string; children: ReactNode }) {
  return (
    <div className="lanes" role="group" aria-label={label}>
      {children}
      <div className="lane axis" aria-hidden="true">
        <span />
        <div className="track">
          {ticksOf(span, TICKS).map((tick) => (
            <span key={tick} style={{ left: `${placeOf(span, tick)}%` }}>
              {tickText(tick, span)}
            </span>
          ))}
        </div>
      </div>
    </div>
  );
}

export function Lane({ name, tall, children }: { name: ReactNode; tall?: boolean; children: ReactNode }) {
  return (
    <div className={tall ? "lane tall" : "lane"}>
      <span className="cut small muted">{name}</span>
      <div className="track">{children}</div>
    </div>
  );
}

/** A long table with its own scrollbar, also by keyboard. */
export function Scrolls({ label, children }: { label: string; children: ReactNode }) {
  return (
    <section className="scrolls" aria-label={label} tabIndex={0}>
      {children}
    </section>
  );
}
