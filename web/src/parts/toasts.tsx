/** Short messages at the edge of the page: results of actions. */
import { useSyncExternalStore } from "react";
import { ApiError } from "../api/client";

interface Toast {
  id: number;
  tone: "good" | "bad" | "plain";
  text: string;
  hint?: string;
}

const SHOWN_MS = 6000;
let toasts: Toast[] = [];
let next = 1;
const listeners = new Set<() => void>();

function change(to: Toast[]): void {
  toasts = to;
  for (const listener of listeners) listener();
}

export function toast(text: string, tone: Toast["tone"] = "plain", hint?: string): void {
  const id = next++;
  change([...toasts.slice(-3), { id, tone, text, hint }]);
  window.setTimeout(() => dismiss(id), tone === "bad" ? 2 * SHOWN_MS : SHOWN_MS);
}

export function toastError(error: unknown): void {
  if (error instanceof ApiError) toast(error.message, "bad", error.hint);
  else toast(String(error), "bad");
}

function dismiss(id: number): void {
  change(toasts.filter((each) => each.id !== id));
}

export function Toasts() {
  const shown = useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    () => toasts,
  );
  return (
    <div className="toasts" role="status" aria-live="polite">
      {shown.map((each) => (
        <div key={each.id} className={`toast ${each.tone}`}>
          <div>
            {each.text}
            {each.hint && <div className="muted">{each.hint}</div>}
          </div>
          <button type="button" className="quiet" aria-label="Dismiss" onClick={() => dismiss(each.id)}>
            ×
          </button>
        </div>
      ))}
    </div>
  );
}
