/** What happens until the model answers: queued, starting, loading, ready; with the time in the current step. */
import type { ChatView, TaskAnswer } from "../../api/schema";
import { PHASES, standingOf } from "../../lib/chats";
import { duration } from "../../lib/format";
import { plain } from "../../lib/words";
import { TaskLink } from "../../parts/bits";
import { useNow } from "../../parts/clock";

const NAMES: Record<(typeof PHASES)[number], string> = {
  queued: "Queued",
  starting: "Starting",
  loading: "Loading",
  ready: "Ready",
};

export function Steps({ task, chat, model }: { task: TaskAnswer; chat?: ChatView; model: string }) {
  const { phase, since } = standingOf(task, chat);
  const seconds = Math.max(0, (useNow() - Date.parse(since)) / 1000);
  if (phase === "ready") return null;
  if (phase === "ended")
    return (
      <p className={task.status === "failed" ? "fault" : "muted"} role="status">
        {task.status === "failed" ? (
          <>
            The chat failed: {chat?.error ?? task.error ?? "unknown error"}{" "}
            <TaskLink id={task.id} name="Show the log" />
          </>
        ) : (
          `The chat is ${plain(task.status)}. The conversation is kept in this browser.`
        )}
      </p>
    );
  const at = PHASES.indexOf(phase);
  return (
    <section className="panel loading-steps" aria-label="Status">
      <ol>
        {PHASES.map((each, number) => (
          <li key={each} className={number < at ? "done" : each === phase ? "now" : undefined}>
            {NAMES[each]}
          </li>
        ))}
      </ol>
      <p role="status">
        {phase === "queued" && (task.why ?? "Waiting for a worker …")}
        {phase === "starting" && `Starting on ${task.worker_id} …`}
        {phase === "loading" && `Loading ${model} on ${task.worker_id} …`}
      </p>
      <span className="muted small num">{seconds < 60 ? `${Math.floor(seconds)} s` : duration(seconds)}</span>
    </section>
  );
}
