/** Attempts and events of a task. */
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { taskEventsQuery } from "../../api/queries";
import type { EventView, TaskAnswer } from "../../api/schema";
import { bytes, number } from "../../lib/format";
import { plain } from "../../lib/words";
import { Panel, Status, Time } from "../../parts/bits";
import { Answer, Empty } from "../../parts/states";

const STATES: Record<string, string> = {
  offered: "dispatched",
  accepted: "running",
  finished: "completed",
  void: "skipped",
};

const SHOWN = 500;

export function History({ task }: { task: TaskAnswer }) {
  const events = useQuery(taskEventsQuery(task.id));
  const [most, setMost] = useState(SHOWN);
  return (
    <div className="stack">
      <Panel title="Attempts" flush>
        {(task.attempt_list ?? []).length === 0 ? (
          <Empty title="No attempts yet" />
        ) : (
          <table>
            <thead>
              <tr>
                <th className="num">#</th>
                <th>Worker</th>
                <th>State</th>
                <th>Started</th>
                <th className="hide-phone">Ended</th>
                <th>Outcome</th>
              </tr>
            </thead>
            <tbody>
              {(task.attempt_list ?? []).map((each) => (
                <tr key={each.number}>
                  <td className="num">{each.number}</td>
                  <td>{(each.nodes ?? []).map((node) => node.worker_id).join(", ") || each.worker_id}</td>
                  <td>
                    <Status status={STATES[each.state] ?? each.state} note={each.state} />
                  </td>
                  <td className="muted">
                    <Time at={each.accepted_at ?? each.offered_at} />
                  </td>
                  <td className="muted hide-phone">
                    <Time at={each.finished_at} />
                  </td>
                  <td className="muted">{each.error ?? plain(each.reason)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        )}
      </Panel>
      <Panel title="Events">
        <Answer query={events}>
          {(found) => (
            <ul className="timeline">
              {found
                .slice(-most)
                .reverse()
                .map((event) => (
                  <li key={event.id}>
                    <span className="muted small">
                      <Time at={event.at} />
                    </span>
                    <span>
                      {told(event)} <span className="muted small">{event.worker_id}</span>
                    </span>
                  </li>
                ))}
              {found.length > most && (
                <li>
                  <button type="button" onClick={() => setMost(most + SHOWN)}>
                    {number(found.length - most)} earlier
                  </button>
                </li>
              )}
            </ul>
          )}
        </Answer>
      </Panel>
    </div>
  );
}

function told(event: EventView): string {
  const data = event.data ?? {};
  const word = (name: string) =>
    typeof data[name] === "string" || typeof data[name] === "number" ? String(data[name]) : "";
  if (event.kind === "task.message") return word("message");
  if (event.kind.startsWith("checkpoint.")) {
    const size = typeof data.size_bytes === "number" ? `, ${bytes(data.size_bytes)}` : "";
    return `Checkpoint ${event.kind.slice("checkpoint.".length)}: ${word("name")}${size}`;
  }
  const reason = plain(word("reason"));
  const what = plain(event.kind.slice(event.kind.indexOf(".") + 1));
  const detail = [reason !== what && reason, word("name"), word("command"), word("state"), word("error")].filter(
    Boolean,
  );
  return `${what.charAt(0).toUpperCase()}${what.slice(1)}${detail.length ? ` · ${detail.join(" · ")}` : ""}`;
}
