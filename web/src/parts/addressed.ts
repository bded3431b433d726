/** State that stands in the address: at once on the screen, and in the address when the hand rests. */
import { useEffect, useRef, useState } from "react";

const REST_MS = 120;

/** Like `useState`; `tell` writes it to the address, and a change of the address from elsewhere is taken over. */
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
