/** Small shared components. */
import { Link } from "@tanstack/react-router";
import { type ReactNode, type RefObject, useEffect, useRef, useState } from "react";
import type { ProgressView } from "../api/schema";
import { ago, duration, localTime, number, percent, utcTime } from "../lib/format";
import type { Change } from "../lib/result";
import { plain } from "../lib/words";
import { useNow } from "./clock";
import { useCopy } from "./copying";

export function Status({ status, note }: { status: string; note?: string }) {
  return (
    <span className={`status ${status}`} title={note}>
      {note ?? plain(status)}
    </span>
  );
}

/** A moment in local time, with UTC on hover. */
export function Time({ at, relative }: { at: string | null | undefined; relative?: boolean }) {
  if (!at) return <span className="muted">–</span>;
  return (
    <time dateTime={at} title={utcTime(at)}>
      {relative ? <Ago at={at} /> : localTime(at)}
    </time>
  );
}

function Ago({ at }: { at: string }) {
  return <>{ago(at, useNow())}</>;
}

export function Bar({ value, label, tone }: { value: number; label: string; tone?: string }) {
  return (
    <div
      className={`bar ${tone ?? ""}`}
      role="progressbar"
      aria-label={label}
      aria-valuenow={Math.round(value)}
      aria-valuemin={0}
      aria-valuemax={100}
    >
      <div style={{ width: `${value}%` }} />
    </div>
  );
}

/** Phase, share, step, time left: one line over a thin bar. */
export function Progress({ progress, compact }: { progress: ProgressView | null | undefined; compact?: boolean }) {
  if (!progress) return null;
  const share = percent(progress.step ?? 0, progress.max_steps ?? 0);
  return (
    <div className="progress">
      <div className="row between tight">
        <span>
          {progress.phase}
          {!!progress.max_steps && (
            <span className="num">
              {" "}
              {Math.floor(share)}%
              <span className="muted">
                {" "}
                · {number(progress.step)} / {number(progress.max_steps)}
              </span>
            </span>
          )}
        </span>
        <span className="num muted">
          {!compact && progress.tokens_per_s ? `${number(Math.round(progress.tokens_per_s))} tokens/s · ` : ""}
          {progress.eta_s != null ? `${duration(progress.eta_s)} left` : ""}
        </span>
      </div>
      <Bar value={share} label="Progress" />
    </div>
  );
}

export function Panel({
  title,
  actions,
  children,
  flush,
}: {
  title?: ReactNode;
  actions?: ReactNode;
  children: ReactNode;
  flush?: boolean;
}) {
  return (
    <section className={flush ? "panel flush" : "panel"}>
      {(title || actions) && (
        <header>
          <h2>{title}</h2>
          {actions && <div className="row tight">{actions}</div>}
        </header>
      )}
      <div className="body">{children}</div>
    </section>
  );
}

export function TaskLink({ id, name }: { id: string; name?: string }) {
  return (
    <Link to="/tasks/$taskId" params={{ taskId: id }} className="strong">
      {name ?? id}
    </Link>
  );
}

/** A relative change, such as `−37.2%`. */
export function Gain({ change: { percent }, good }: { change: Change; good: boolean }) {
  if (percent === null) return null;
  return (
    <span className={good ? "small gain" : "small loss-of"}>
      {percent > 0 ? "+" : "−"}
      {Math.abs(percent).toFixed(1)}%
    </span>
  );
}

/** A link to a page of the documentation, such as `how-to/join-a-worker`. */
export function DocsLink({ page, children = "Learn more" }: { page: string; children?: ReactNode }) {
  const [name, hash] = page.split("#");
  return (
    <Link to="/docs/$" params={{ _splat: name }} hash={hash} className="docs-link">
      {children}
    </Link>
  );
}

/** An id that is copied on click. */
export function Id({ value }: { value: string }) {
  const { shown, copied, copy } = useCopy<HTMLSpanElement>(value);
  return (
    <button type="button" className="id" title={`Copy ${value}`} onClick={copy}>
      <span ref={shown}>{copied ? "copied" : value}</span>
    </button>
  );
}

/** A command line that is copied on click. */
export function Copyable({ text }: { text: string }) {
  const { shown, copied, copy } = useCopy<HTMLPreElement>(text);
  return (
    <div className="copyable">
      <pre ref={shown}>{text}</pre>
      <button type="button" onClick={copy}>
        {copied ? "Copied" : "Copy"}
      </button>
    </div>
  );
}

/** Confirmation dialog for an action that cannot be undone. */
export function Confirm({
  title,
  children,
  action,
  danger,
  allowed = true,
  onDo,
  onClose,
}: {
  title: string;
  children: ReactNode;
  action: string;
  danger?: boolean;
  /** Whether what the dialog asks for is complete. */
  allowed?: boolean;
  onDo: () => void;
  onClose: () => void;
}) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    dialog.current?.showModal();
  }, []);
  return (
    <dialog ref={dialog} onClose={onClose} aria-labelledby="confirm-title">
      <h2 id="confirm-title">{title}</h2>
      <div>{children}</div>
      <div className="row end">
        <button type="button" onClick={onClose}>
          Cancel
        </button>
        <button
          type="button"
          className={danger ? "danger" : "primary"}
          disabled={!allowed}
          onClick={() => {
            onDo();
            onClose();
          }}
        >
          {action}
        </button>
      </div>
    </dialog>
  );
}

export function Tabs<T extends string>({
  tabs,
  chosen,
  onChoose,
}: {
  tabs: readonly (readonly [T, string])[];
  chosen: T;
  onChoose: (tab: T) => void;
}) {
  const step = (by: number) => {
    const at = tabs.findIndex(([id]) => id === chosen);
    const next = tabs[(at + by + tabs.length) % tabs.length];
    if (next) {
      onChoose(next[0]);
      document.getElementById(`tab-${next[0]}`)?.focus();
    }
  };
  const list = useRef<HTMLDivElement>(null);
  const hidden = useHidden(list);
  return (
    <div className={`tabs-box ${hidden}`}>
      <div className="tabs" role="tablist" ref={list}>
        {tabs.map(([id, label]) => (
          <button
            key={id}
            id={`tab-${id}`}
            type="button"
            role="tab"
            aria-selected={id === chosen}
            tabIndex={id === chosen ? 0 : -1}
            onClick={() => onChoose(id)}
            onKeyDown={(event) => {
              if (event.key === "ArrowRight") step(1);
              if (event.key === "ArrowLeft") step(-1);
            }}
          >
            {label}
          </button>
        ))}
      </div>
    </div>
  );
}

/** On which sides a row is scrolled out of sight: a hint is drawn there. */
function useHidden(row: RefObject<HTMLElement | null>): string {
  const [hidden, setHidden] = useState("");
  useEffect(() => {
    const element = row.current;
    if (!element) return;
    const look = () => {
      const { scrollLeft, scrollWidth, clientWidth } = element;
      const sides = [scrollLeft > 1 && "more-left", scrollLeft + clientWidth < scrollWidth - 1 && "more-right"];
      setHidden(sides.filter(Boolean).join(" "));
    };
    const watch = new ResizeObserver(look);
    watch.observe(element);
    element.addEventListener("scroll", look, { passive: true });
    element.querySelector("[aria-selected=true]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
    return () => {
      watch.disconnect();
      element.removeEventListener("scroll", look);
    };
  }, [row]);
  return hidden;
}

/** A small line without axes. */
export function Sparkline({ values, label }: { values: readonly number[]; label: string }) {
  if (values.length < 2) return <span className="spark" />;
  const low = Math.min(...values);
  const high = Math.max(...values);
  const span = high - low || 1;
  const path = values
    .map((value, at) => {
      const x = ((at / (values.length - 1)) * 98 + 1).toFixed(1);
      return `${at ? "L" : "M"}${x} ${(26 - ((value - low) / span) * 24).toFixed(1)}`;
    })
    .join("");
  return (
    <svg className="spark" viewBox="0 0 100 28" preserveAspectRatio="none" role="img" aria-label={label}>
      <path d={path} vectorEffect="non-scaling-stroke" />
    </svg>
  );
}
