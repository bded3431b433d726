/** The end of a log, then live output; a broken stream resumes at its offset. */
import { useEffect, useState } from "react";
import { ApiError, api, ask } from "../../api/client";
import type { LogView } from "../../api/schema";
import { appended, type Held, NOTHING, prepended } from "../../lib/log";
import { whileVisible } from "../../lib/visible";
import { toastError } from "../../parts/toasts";

const TAIL_BYTES = 256 * 1024;
const EARLIER_BYTES = 4 << 20;
const AGAIN_MS = 3000;
/** Maximum number of lines held: the log of a task that runs for days would fill the browser. */
export const MOST_HELD = 50_000;

export interface LogNow {
  held: Held;
  /** Number of bytes before the loaded part. */
  start: number;
  ended: boolean;
  error: unknown;
  retry: () => void;
  /** Load earlier output; `busy` while loading. */
  earlier: () => void;
  busy: boolean;
}

export function useLog(id: string): LogNow {
  const [held, setHeld] = useState(NOTHING);
  const [start, setStart] = useState(0);
  const [error, setError] = useState<unknown>();
  const [ended, setEnded] = useState(false);
  const [tries, setTries] = useState(0);
  const [busy, setBusy] = useState(false);
  // biome-ignore lint/correctness/useExhaustiveDependencies: each retry restarts the effect
  useEffect(() => {
    const left = new AbortController();
    let source: EventSource | undefined;
    let again = 0;
    let next = 0;
    let end: (() => void) | undefined;
    const rest = () => {
      window.clearTimeout(again);
      source?.close();
    };
    const follow = () => {
      source = new EventSource(`/api/v1/tasks/${id}/log/stream?offset=${next}`);
      source.addEventListener("log", (message: MessageEvent<string>) => {
        const piece = JSON.parse(message.data) as LogView;
        if (piece.offset < next) return;
        next = piece.next_offset;
        setHeld((old) => appended(old, piece.text, MOST_HELD));
      });
      source.addEventListener("eos", () => {
        end?.();
        setEnded(true);
      });
      source.onerror = () => {
        if (source?.readyState === EventSource.CLOSED && !left.signal.aborted)
          again = window.setTimeout(follow, AGAIN_MS);
      };
    };
    const begin = async () => {
      try {
        const query = { tail_bytes: TAIL_BYTES, limit_bytes: TAIL_BYTES };
        const tail = await read(id, query, left.signal);
        if (left.signal.aborted) return;
        setHeld(appended(NOTHING, tail.text, MOST_HELD));
        setStart(tail.offset);
        setEnded(tail.final);
        next = tail.next_offset;
        if (!tail.final) end = whileVisible(follow, rest);
      } catch (failure) {
        if (left.signal.aborted) return;
        if (failure instanceof ApiError) setError(failure);
        else throw failure;
      }
    };
    void begin();
    return () => {
      left.abort();
      end?.();
    };
  }, [id, tries]);
  const retry = () => {
    setError(undefined);
    setTries(tries + 1);
  };
  const earlier = async () => {
    setBusy(true);
    try {
      const offset = Math.max(0, start - EARLIER_BYTES);
      const piece = await read(id, { offset, limit_bytes: start - offset });
      setHeld((old) => prepended(old, piece.text));
      setStart(offset);
    } catch (failure) {
      toastError(failure);
    } finally {
      setBusy(false);
    }
  };
  return { held, start, ended, error, retry, earlier: () => void earlier(), busy };
}

function read(
  task_id: string,
  query: { offset?: number; tail_bytes?: number; limit_bytes: number },
  signal?: AbortSignal,
): Promise<LogView> {
  return ask(api.GET("/api/v1/tasks/{task_id}/log", { params: { path: { task_id }, query }, signal }));
}
