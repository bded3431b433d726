/** The log of a task: live, searchable, by level. */
import { useEffect, useMemo, useRef, useState } from "react";
import type { TaskAnswer } from "../../api/schema";
import { bytes, number } from "../../lib/format";
import { allLines } from "../../lib/log";
import { Empty, Failed } from "../../parts/states";
import { MOST_HELD, useLog } from "./following";

const FIRST_SHOWN = 5000;

export function Log({ task }: { task: TaskAnswer }) {
  const { held, start, error, retry, ended, earlier, busy } = useLog(task.id);
  const [most, setMost] = useState(FIRST_SHOWN);
  const [find, setFind] = useState("");
  const [level, setLevel] = useState<"all" | "warning" | "error">("all");
  const [following, setFollowing] = useState(true);
  const box = useRef<HTMLDivElement>(null);

  const all = useMemo(() => allLines(held), [held]);
  const shown = useMemo(() => {
    const wanted = find.toLowerCase();
    if (level === "all" && !wanted) return all;
    return all.filter(
      (line) =>
        (level === "all" || line.level === "error" || (level === "warning" && line.level === "warning")) &&
        (!wanted || line.text.toLowerCase().includes(wanted)),
    );
  }, [all, find, level]);
  const visible = shown.slice(-most);
  const above = shown.length - visible.length;
  const full = held.dropped > 0 || held.lines.length >= MOST_HELD;

  // biome-ignore lint/correctness/useExhaustiveDependencies: it follows what is shown
  useEffect(() => {
    const element = box.current;
    if (following && element) element.scrollTop = element.scrollHeight;
  }, [visible.length, held, following]);

  if (error) return <Failed error={error} retry={retry} />;
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
          {above === 0 && start > 0 && !full && (
            <button type="button" disabled={busy} onClick={earlier}>
              {busy ? "Loading …" : `Load ${bytes(start)} earlier`}
            </button>
          )}
          {above > 0 && (
            <button type="button" onClick={() => setMost(most + FIRST_SHOWN)}>
              Show {number(above)} earlier lines
            </button>
          )}
        </div>
        <span className="muted small num">
          {find || level !== "all" ? `${number(shown.length)} of ` : ""}
          {number(all.length)} {all.length === 1 ? "line" : "lines"}
          {ended ? "" : " · live"}
        </span>
      </header>
      {full && (
        <div className="note">
          Only the newest {number(MOST_HELD)} lines are shown. Run <code>tunefleet logs {task.id}</code> for the full
          log.
        </div>
      )}
      {all.length === 0 ? (
        <Empty title="No log lines yet" />
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
          {visible.map((line, at) => (
            // biome-ignore lint/suspicious/noArrayIndexKey: lines are only appended
            <div key={at} className={line.level}>
              {find ? <Marked line={line.text} find={find} /> : line.text || "\u00a0"}
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
