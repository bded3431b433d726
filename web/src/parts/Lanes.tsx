/** A timeline: lanes over one time axis. `lib/span` positions their items. */
import type { ReactNode } from "react";
import { placeOf, type Span, ticksOf, tickText } from "../lib/span";
import { useIsPhone } from "./phone";

/** How many ticks fit, and the last place in percent where a label does; before `now`, there is less room. */
const WIDE = { ticks: 6, last: 95, lastBeforeNow: 90 };
const NARROW = { ticks: 3, last: 80, lastBeforeNow: 65 };

/** `live`: the axis ends now. */
export function Lanes({
  span,
  label,
  live,
  children,
}: {
  span: Span;
  label: string;
  live?: boolean;
  children: ReactNode;
}) {
  const room = useIsPhone() ? NARROW : WIDE;
  const last = live ? room.lastBeforeNow : room.last;
  return (
    <div className="lanes" role="group" aria-label={label}>
      {children}
      <div className="lane axis" aria-hidden="true">
        <span />
        <div className="track">
          {ticksOf(span, room.ticks)
            .filter((tick) => placeOf(span, tick) <= last)
            .map((tick) => (
              <span key={tick} style={{ left: `${placeOf(span, tick)}%` }}>
                {tickText(tick, span)}
              </span>
            ))}
          {span.quiet !== undefined && (
            <i className="quiet-from" style={{ left: `${placeOf(span, span.quiet)}%` }}>
              ⋯
            </i>
          )}
          {live && <span className="now">now</span>}
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
