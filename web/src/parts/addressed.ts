/** State in the URL: applied immediately, written to the URL after a pause. */
import { useEffect, useRef, useState } from "react";

const REST_MS = 120;

/** Like `useState`; `tell` writes the value to the URL, and external changes of the URL are applied. */
export function useAddressed<T>(value: T, tell: (next: T) => void): [T, (next: T) => void] {
  const [now, setNow] = useState(value);
  const key = JSON.stringify(value);
  const sent = useRef(key);
  const timer = useRef(0);
  const telling = useRef(tell);
  telling.current = tell;
  // biome-ignore lint/correctness/useExhaustiveDependencies: `key` stands for the value
  useEffect(() => {
    if (key !== sent.current) setNow(value);
    sent.current = key;
  }, [key]);
  useEffect(() => () => window.clearTimeout(timer.current), []);
  const set = (next: T) => {
    setNow(next);
    window.clearTimeout(timer.current);
    timer.current = window.setTimeout(() => {
      sent.current = JSON.stringify(next);
      telling.current(next);
    }, REST_MS);
  };
  return [now, set];
}
