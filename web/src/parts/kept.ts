/** Unsent input, kept in this window: an expired session does not lose it. */
import { type Dispatch, type SetStateAction, useEffect, useState } from "react";
import { useSession } from "./session";
import { toast } from "./toasts";

const PREFIX = "tunefleet.kept";

export interface Kept<T> {
  value: T;
  set: Dispatch<SetStateAction<T>>;
  /** Whether it existed when the page was opened. */
  found: boolean;
  forget: () => void;
}

/** Like `useState`, for the logged-in user; `settled`: whether the current value is worth keeping. */
export function useKept<T>(name: string, first: T, settled: (value: T) => boolean = () => true): Kept<T> {
  const { info } = useSession();
  const key = [PREFIX, info.owner, name].join(" ");
  const [before] = useState(() => sessionStorage.getItem(key));
  const [found, setFound] = useState(before !== null);
  const [value, set] = useState<T>(() => (before === null ? first : (JSON.parse(before) as T)));
  const worth = settled(value) && value !== first;
  useEffect(() => {
    if (worth) keep(key, JSON.stringify(value));
    else if (value === first) sessionStorage.removeItem(key);
  }, [key, value, first, worth]);
  const forget = () => {
    sessionStorage.removeItem(key);
    setFound(false);
  };
  return { value, set, found, forget };
}

/** Clear it for the next user of this window. */
export function forgetKept(): void {
  for (const key of Object.keys(sessionStorage)) if (key.startsWith(PREFIX)) sessionStorage.removeItem(key);
}

function keep(key: string, text: string): void {
  try {
    sessionStorage.setItem(key, text);
  } catch {
    toast("Draft not saved: browser storage is full", "bad", "Your text is lost when you leave this page.");
  }
}
