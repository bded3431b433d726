/** The attempts of a task, each with its events. */
import { useQuery } from "@tanstack/react-query";
import { taskEventsQuery } from "../../api/queries";
import type { AttemptView, EventView, TaskAnswer } from "../../api/schema";
import { bytes, duration, number } from "../../lib/format";
import { type AttemptEvents, byAttempt } from "../../lib/history";
import { COMMANDS, plain } from "../../lib/words";
import { Panel, Status, Time } from "../../parts/bits";
import { useNow } from "../../parts/clock";
import { WorkerLink } from "../../parts/Fleet";
import { Answer, Empty } from "../../parts/states";

const STATES: Record<string, string> = {
  offered: "dispatched",
  accepted: "running",
  finished: "completed",
  void: "skipped",
};
/** Older entries of an attempt are folded. */
const SHOWN = 50;

export function History({ task }: { task: TaskAnswer }) {
  const events = useQuery(taskEventsQuery(task.id));
  return (
    <Answer query={events}>
      {(found) => {
        const groups = byAttempt(task.attempt_list ?? [], found);
        return groups.length === 0 ? (
          <Empty title="No events yet">Attempts and events appear here once the run is queued.</Empty>
        ) : (
          <div className="stack">
            {groups.map((group) => (
              <Group key={group.attempt?.number ?? "before"} group={group} />
            ))}
          </div>
        );
      }}
    </Answer>
  );
}

function Group({ group: { attempt, entries } }: { group: AttemptEvents }) {
  return (
    <Panel
      title={attempt ? <>Attempt {attempt.number}</> : "Before the first attempt"}
      actions={attempt && <Summary attempt={attempt} />}
    >
      {attempt?.error && <div className="fault wrap">{attempt.error}</div>}
      {entries.length === 0 && <div className="muted">No events</div>}
      <Entries entries={entries.slice(0, SHOWN)} />
      {entries.length > SHOWN && (
        <details>
          <summary>{number(entries.length - SHOWN)} earlier events</summary>
          <Entries entries={entries.slice(SHOWN)} />
        </details>
      )}
    </Panel>
  );
}

function Summary({ attempt }: { attempt: AttemptView }) {
  const nodes = (attempt.nodes ?? []).map((node) => node.worker_id);
  return (
    <span className="row muted small facts-line">
      <Status status={stateOf(attempt)} note={attempt.reason ? plain(attempt.reason) : stateOf(attempt)} />
      <span>
        on{" "}
        {(nodes.length ? nodes : [attempt.worker_id]).map((id, at) => (
          <span key={id}>
            {at > 0 && ", "}
            <WorkerLink id={id} plain />
          </span>
        ))}
      </span>
      <span className="nowrap">
        <Time at={attempt.accepted_at ?? attempt.offered_at} />
      </span>
      <Took attempt={attempt} />
    </span>
  );
}

function stateOf(attempt: AttemptView): string {
  if (attempt.reason === "paused") return "paused";
  if (attempt.state === "finished" && attempt.error) return "failed";
  return STATES[attempt.state] ?? attempt.state;
}

function Took({ attempt }: { attempt: AttemptView }) {
  const now = useNow();
  if (!attempt.accepted_at) return null;
  const until = attempt.finished_at ? Date.parse(attempt.finished_at) : now;
  return <span className="num nowrap">{duration((until - Date.parse(attempt.accepted_at)) / 1000)}</span>;
}

function Entries({ entries }: { entries: readonly EventView[][] }) {
  return (
    <ul className="timeline">
      {entries.map((events) => {
        const last = events.at(-1);
        return (
          last && (
            <li key={last.id}>
              <span className="muted small num">
                <Time at={last.at} />
              </span>
              {events.length === 1 ? (
                <span>{told(last)}</span>
              ) : (
                <details>
                  <summary>
                    {checkpoints(events)}, latest {word(last, "name")}
                  </summary>
                  <Entries entries={[...events].reverse().map((each) => [each])} />
                </details>
              )}
            </li>
          )
        );
      })}
    </ul>
  );
}

function checkpoints(events: readonly EventView[]): string {
  const count = new Set(events.map((event) => word(event, "name"))).size;
  return count === 1 ? "1 checkpoint" : `${number(count)} checkpoints`;
}

function word({ data }: EventView, name: string): string {
  const value = data?.[name];
  return typeof value === "string" || typeof value === "number" ? String(value) : "";
}

function told(event: EventView): string {
  const of = (name: string) => word(event, name);
  if (event.kind === "task.message") return of("message");
  if (event.kind.startsWith("checkpoint.")) {
    const size = typeof event.data?.size_bytes === "number" ? `, ${bytes(event.data.size_bytes)}` : "";
    return `Checkpoint ${event.kind.slice("checkpoint.".length)}: ${of("name")}${size}`;
  }
  if (event.kind.startsWith("command.")) {
    const state = event.kind.slice("command.".length);
    const error = of("error") && ` · ${of("error")}`;
    return `${COMMANDS[of("command")] ?? plain(of("command"))}: ${state === "asked" ? "requested" : plain(state)}${error}`;
  }
  const reason = plain(of("reason"));
  const what = plain(event.kind.slice(event.kind.indexOf(".") + 1));
  const detail = [reason !== what && reason, of("name"), of("command"), of("state"), of("error")].filter(Boolean);
  return `${what.charAt(0).toUpperCase()}${what.slice(1)}${detail.length ? ` · ${detail.join(" · ")}` : ""}`;
}
