/** Preferences of the logged-in user, kept in this browser. */
import { useEffect, useState } from "react";
import { useSession } from "./session";
import { toast } from "./toasts";

/** Like `useState`; `valid` checks what an earlier version of the page may have stored. */
export function useStored<T>(name: string, first: T, valid: (value: unknown) => value is T): [T, (next: T) => void] {
  const { info } = useSession();
  const key = ["tunefleet", info.owner, name].join(" ");
  const [value, set] = useState<T>(() => read(key, valid) ?? first);
  useEffect(() => {
    // Another tab has changed it.
    const changed = (event: StorageEvent) => {
      if (event.key === key) set(read(key, valid) ?? first);
    };
    window.addEventListener("storage", changed);
    return () => window.removeEventListener("storage", changed);
  }, [key, valid, first]);
  const keep = (next: T) => {
    set(next);
    try {
      localStorage.setItem(key, JSON.stringify(next));
    } catch {
      toast("Not saved: browser storage is full", "bad", "The change is lost when you leave this page.");
    }
  };
  return [value, keep];
}

function read<T>(key: string, valid: (value: unknown) => value is T): T | undefined {
  try {
    const found: unknown = JSON.parse(localStorage.getItem(key) ?? "null");
    return valid(found) ? found : undefined;
  } catch {
    return undefined;
  }
}

export function isTexts(value: unknown): value is string[] {
  return Array.isArray(value) && value.every((each) => typeof each === "string");
}
