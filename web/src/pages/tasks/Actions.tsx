/** Bulk actions on the selected runs. */
import { useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { type ReactNode, useState } from "react";
import { api, ask } from "../../api/client";
import type { ManyRequest, OneOfMany, TaskView } from "../../api/schema";
import { MOST_COMPARED } from "../../lib/compare";
import { number } from "../../lib/format";
import { isFinal } from "../../lib/words";
import { Confirm } from "../../parts/bits";
import { Popover } from "../../parts/Popover";
import { maySteer, useSession } from "../../parts/session";
import { TagInput } from "../../parts/TagInput";
import { toast, toastError } from "../../parts/toasts";

/** Maximum number of runs for each bulk request. */
const AT_ONCE = 1000;

const runs = (count: number) => (count === 1 ? "1 run" : `${number(count)} runs`);

type Confirmed = "cancel" | "retry" | "remove";
const DONE: Record<ManyRequest["action"], string> = {
  cancel: "Cancelled",
  retry: "Submitted again",
  remove: "Deleted",
  tag: "Tagged",
  untag: "Tags removed",
};

interface Props {
  tasks: TaskView[];
  onDone: () => void;
  onEdit: (task: TaskView) => void;
}

export function Actions({ tasks, onDone, onEdit }: Props) {
  const session = useSession();
  const client = useQueryClient();
  const navigate = useNavigate();
  const [asking, setAsking] = useState<Confirmed | null>(null);
  const mine = tasks.filter((task) => maySteer(session, task.owner));
  const live = mine.filter((task) => !isFinal(task.status));
  const over = tasks.filter((task) => isFinal(task.status) && !task.shard_of);
  const gone = mine.filter((task) => isFinal(task.status) && !task.shard_of);
  const meant: Record<Confirmed, TaskView[]> = { cancel: live, retry: over, remove: gone };

  const each = async (some: TaskView[], action: ManyRequest["action"], tags?: string[]) => {
    try {
      const items: OneOfMany[] = [];
      for (let start = 0; start < some.length; start += AT_ONCE) {
        const task_ids = some.slice(start, start + AT_ONCE).map((task) => task.id);
        items.push(
          ...(await ask(api.POST("/api/v1/tasks/bulk", { body: { action, task_ids, tags: tags ?? [] } }))).items,
        );
      }
      const bad = items.filter((item) => !item.ok);
      if (bad.length < items.length) toast(`${DONE[action]}: ${runs(items.length - bad.length)}`, "good");
      if (bad[0]) toast(`${runs(bad.length)} not changed: ${bad[0].detail}`, "bad");
    } catch (error) {
      toastError(error);
    }
    for (const what of ["tasks", "task-counts"]) await client.invalidateQueries({ queryKey: [what] });
    if (!tags) onDone();
  };
  const foreign = tasks.length - mine.length;
  const why = (some: TaskView[], otherwise: string) =>
    some.length > 0 ? undefined : foreign === tasks.length ? "The selected runs belong to other users" : otherwise;
  const comparable = tasks.length >= 2 && tasks.length <= MOST_COMPARED;
  const only = tasks.length === 1 ? mine[0] : undefined;
  return (
    <div className="row tight" role="toolbar" aria-label="Actions on the selected runs">
      <span className="muted">{number(tasks.length)} selected</span>
      <button
        type="button"
        disabled={!comparable}
        title={comparable ? undefined : `Select 2 to ${MOST_COMPARED} runs`}
        onClick={() => void navigate({ to: "/compare", search: { tasks: tasks.map((task) => task.id).join(",") } })}
      >
        Compare
      </button>
      {session.mayChange && (
        <>
          {only && (
            <button type="button" onClick={() => onEdit(only)}>
              Edit
            </button>
          )}
          <Popover label="Tags" disabled={mine.length === 0} title={why(mine, "")}>
            {() => <Tagging tasks={mine} each={each} />}
          </Popover>
          <button
            type="button"
            disabled={over.length === 0}
            title={over.length > 0 ? undefined : "None of the selected runs has ended"}
            onClick={() => setAsking("retry")}
          >
            Retry {over.length ? number(over.length) : ""}
          </button>
          <button
            type="button"
            className="danger"
            disabled={live.length === 0}
            title={why(live, "All selected runs have ended")}
            onClick={() => setAsking("cancel")}
          >
            Cancel {live.length ? number(live.length) : ""}
          </button>
          <button
            type="button"
            className="danger"
            disabled={gone.length === 0}
            title={why(gone, "Only runs that have ended can be deleted")}
            onClick={() => setAsking("remove")}
          >
            Delete {gone.length ? number(gone.length) : ""}
          </button>
        </>
      )}
      <button type="button" className="quiet" onClick={onDone}>
        Clear selection
      </button>
      {asking && (
        <Confirm
          title={TITLES[asking](meant[asking].length)}
          action={asking === "retry" ? "Retry" : asking === "cancel" ? "Cancel runs" : "Delete"}
          danger={asking !== "retry"}
          onDo={() => void each(meant[asking], asking)}
          onClose={() => setAsking(null)}
        >
          <Consequences tasks={meant[asking]}>{CONSEQUENCES[asking]}</Consequences>
          {tasks.length > meant[asking].length && (
            <p className="muted">Not affected: {runs(tasks.length - meant[asking].length)} of the selection.</p>
          )}
        </Confirm>
      )}
    </div>
  );
}

const TITLES: Record<Confirmed, (count: number) => string> = {
  cancel: (count) => (count === 1 ? "Cancel this run?" : `Cancel ${runs(count)}?`),
  retry: (count) => (count === 1 ? "Retry this run?" : `Retry ${runs(count)}?`),
  remove: (count) => (count === 1 ? "Delete this run?" : `Delete ${runs(count)}?`),
};
const CONSEQUENCES: Record<Confirmed, string> = {
  cancel: "Active runs stop after the current step. Saved checkpoints are kept, and you can resume from them.",
  retry: "Each is submitted again as a new run with the same settings; the old one stays in the list.",
  remove: "Their metrics, logs, checkpoints and artifacts are deleted. This cannot be undone.",
};

/** How many runs of each status, then what happens to them. */
function Consequences({ tasks, children }: { tasks: readonly TaskView[]; children: ReactNode }) {
  const counts = new Map<string, number>();
  for (const { status } of tasks) counts.set(status, (counts.get(status) ?? 0) + 1);
  return (
    <p>
      {[...counts].map(([status, count]) => `${number(count)} ${status}`).join(", ")}. {children}
    </p>
  );
}

function Tagging({
  tasks,
  each,
}: {
  tasks: TaskView[];
  each: (some: TaskView[], action: "tag" | "untag", tags: string[]) => Promise<void>;
}) {
  const [fresh, setFresh] = useState<string[]>([]);
  const counts = new Map<string, number>();
  for (const tag of tasks.flatMap((task) => task.tags ?? [])) counts.set(tag, (counts.get(tag) ?? 0) + 1);
  return (
    <div className="stack">
      <TagInput label="Tags to add" tags={fresh} onChange={setFresh} />
      <div>
        <button
          type="button"
          className="primary"
          disabled={fresh.length === 0}
          title={fresh.length ? undefined : "Type a tag first"}
          onClick={() => void each(tasks, "tag", fresh).then(() => setFresh([]))}
        >
          Add to {runs(tasks.length)}
        </button>
      </div>
      {counts.size > 0 && (
        <fieldset className="plain options">
          <legend className="muted small">Remove</legend>
          {[...counts].sort().map(([tag, count]) => (
            <div key={tag} className="row between">
              <span>
                <span className="tag">{tag}</span> <span className="muted small">{runs(count)}</span>
              </span>
              <button
                type="button"
                className="quiet"
                aria-label={`Remove the tag ${tag}`}
                onClick={() => void each(tasks, "untag", [tag])}
              >
                ×
              </button>
            </div>
          ))}
        </fieldset>
      )}
    </div>
  );
}
