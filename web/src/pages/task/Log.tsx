/** The log of a task: as it grows, searched, by level. */
import { useEffect, useMemo, useRef, useState } from "react";
import { ApiError, api, ask } from "../../api/client";
import type { LogView, TaskAnswer } from "../../api/schema";
import { bytes, number } from "../../lib/format";
import { levelOf, lines as linesOf } from "../../lib/log";
import { Empty, Failed } from "../../parts/states";

const TAIL_BYTES = 256 * 1024;
const MOST_LINES = 5000;

export function Log({ task }: { task: TaskAnswer }) {
  const { text, start, error, ended, earlier } = useLog(task.id);
  const [find, setFind] = useState("");
  const [level, setLevel] = useState<"all" | "warning" | "error">("all");
  const [following, setFollowing] = useState(true);
  const box = useRef<HTMLDivElement>(null);

  const all = useMemo(() => linesOf(text), [text]);
  const shown = useMemo(() => {
    const wanted = find.toLowerCase();
    return all
      .map((line) => [line, levelOf(line)] as const)
      .filter(
        ([line, its]) =>
          (level === "all" || its === "error" || (level === "warning" && its === "warning")) &&
          (!wanted || line.toLowerCase().includes(wanted)),
      );
  }, [all, find, level]);
  const visible = shown.slice(-MOST_LINES);

  // biome-ignore lint/correctness/useExhaustiveDependencies: it follows what is shown
  useEffect(() => {
    const element = box.current;
    if (following && element) element.scrollTop = element.scrollHeight;
  }, [visible.length, text, following]);

  if (error) return <Failed error={error} />;
  return (
    <section className="panel">
      <header>
        <div className="row tight">
          <input
            type="search"
            aria-label="Search the log"
            placeholder="Search"
            value={find}
            onChange={(event) => setFind(event.target.value)}
          />
          <select aria-label="Level" value={level} onChange={(event) => setLevel(event.target.value as typeof level)}>
            <option value="all">All lines</option>
            <option value="warning">Warnings and errors</option>
            <option value="error">Errors</option>
          </select>
          <button type="button" aria-pressed={following} onClick={() => setFollowing(!following)}>
            Follow
          </button>
          {start > 0 && (
            <button type="button" onClick={() => void earlier()}>
              Show the {bytes(start)} before
            </button>
          )}
        </div>
        <span className="muted small num">
          {find || level !== "all" ? `${number(shown.length)} of ` : ""}
          {number(all.length)} {all.length === 1 ? "line" : "lines"}
          {ended ? "" : " · live"}
        </span>
      </header>
      {all.length === 0 ? (
        <Empty title="Nothing was written yet" />
      ) : (
        <div
          className="log"
          ref={box}
          tabIndex={0}
          role="log"
          aria-label="Log"
          onWheel={(event) => {
            if (event.deltaY < 0) setFollowing(false);
          }}
        >
          {visible.map(([line, its], at) => (
            // biome-ignore lint/suspicious/noArrayIndexKey: lines only come at the end
            <div key={at} className={its}>
              {find ? <Marked line={line} find={find} /> : line || "\u00a0"}
            </div>
          ))}
        </div>
      )}
    </section>
  );
}

function Marked({ line, find }: { line: string; find: string }) {
  const at = line.toLowerCase().indexOf(find.toLowerCase());
  if (at < 0) return <>{line}</>;
  return (
    <>
      {line.slice(0, at)}
      <mark>{line.slice(at, at + find.length)}</mark>
      {line.slice(at + find.length)}
    </>
  );
}

/** The end of a log, and then each piece as it is written; a stream that breaks goes on at its byte. */
function useLog(id: string) {
  const [text, setText] = useState("");
  const [start, setStart] = useState(0);
  const [error, setError] = useState<unknown>();
  const [ended, setEnded] = useState(false);
  useEffect(() => {
    let source: EventSource | undefined;
    let retry = 0;
    let next = 0;
    let over = false;
    const follow = () => {
      source = new EventSource(`/api/v1/tasks/${id}/log/stream?offset=${next}`);
      source.addEventListener("log", (message: MessageEvent<string>) => {
        const piece = JSON.parse(message.data) as LogView;
        if (piece.offset < next) return;
        next = piece.next_offset;
        setText((old) => old + piece.text);
      });
      source.addEventListener("eos", () => {
        source?.close();
        setEnded(true);
      });
      source.onerror = () => {
        if (source?.readyState === EventSource.CLOSED && !over) retry = window.setTimeout(follow, 3000);
      };
    };
    const begin = async () => {
      try {
        const tail = await ask(
          api.GET("/api/v1/tasks/{task_id}/log", {
            params: { path: { task_id: id }, query: { tail_bytes: TAIL_BYTES, limit_bytes: TAIL_BYTES } },
          }),
        );
        if (over) return;
        setText(tail.text);
        setStart(tail.offset);
        setEnded(tail.final);
        next = tail.next_offset;
        if (!tail.final) follow();
      } catch (failure) {
        if (failure instanceof ApiError) setError(failure);
        else throw failure;
      }
    };
    void begin();
    return () => {
      over = true;
      window.clearTimeout(retry);
      source?.close();
    };
  }, [id]);
  const earlier = async () => {
    const from = Math.max(0, start - (4 << 20));
    const piece = await ask(
      api.GET("/api/v1/tasks/{task_id}/log", {
        params: { path: { task_id: id }, query: { offset: from, limit_bytes: start - from } },
      }),
    );
    setText((old) => piece.text + old);
    setStart(from);
  };
  return { text, start, error, ended, earlier };
}
