/** Bulk actions on the selected tasks. */
import { useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { useState } from "react";
import { api, ask } from "../../api/client";
import type { OneOfMany, TaskView } from "../../api/schema";
import { number } from "../../lib/format";
import { isFinal } from "../../lib/words";
import { Confirm } from "../../parts/bits";
import { maySteer, useSession } from "../../parts/session";
import { toast, toastError } from "../../parts/toasts";

const MOST_COMPARED = 8;
/** Maximum number of tasks for each bulk request. */
const AT_ONCE = 1000;

export function Actions({ tasks, onDone }: { tasks: TaskView[]; onDone: () => void }) {
  const session = useSession();
  const client = useQueryClient();
  const navigate = useNavigate();
  const [asking, setAsking] = useState(false);
  const live = tasks.filter((task) => !isFinal(task.status) && maySteer(session, task.owner));
  const over = tasks.filter((task) => isFinal(task.status));

  const each = async (some: TaskView[], action: "cancel" | "retry", said: string) => {
    try {
      const items: OneOfMany[] = [];
      for (let start = 0; start < some.length; start += AT_ONCE) {
        const task_ids = some.slice(start, start + AT_ONCE).map((task) => task.id);
        items.push(...(await ask(api.POST("/api/v1/tasks/bulk", { body: { action, task_ids } }))).items);
      }
      const bad = items.filter((item) => !item.ok);
      if (bad.length < items.length) toast(`${said}: ${items.length - bad.length}`, "good");
      if (bad[0]) toast(`${bad.length} failed: ${bad[0].detail}`, "bad", bad[0].hint ?? undefined);
    } catch (error) {
      toastError(error);
    }
    for (const what of ["tasks", "task-counts"]) await client.invalidateQueries({ queryKey: [what] });
    onDone();
  };
  return (
    <div className="row tight">
      <span className="muted">{number(tasks.length)} selected</span>
      <button
        type="button"
        disabled={tasks.length < 2 || tasks.length > MOST_COMPARED}
        title={`Select 2 to ${MOST_COMPARED} tasks`}
        onClick={() => void navigate({ to: "/compare", search: { tasks: tasks.map((task) => task.id).join(",") } })}
      >
        Compare
      </button>
      {session.mayChange && (
        <>
          <button
            type="button"
            disabled={over.length === 0}
            onClick={() => void each(over, "retry", "Submitted again")}
          >
            Retry {over.length ? number(over.length) : ""}
          </button>
          <button
            type="button"
            className="danger"
            disabled={live.length === 0}
            title="Cancels only your own unfinished runs"
            onClick={() => setAsking(true)}
          >
            Cancel {live.length ? number(live.length) : ""}
          </button>
        </>
      )}
      <button type="button" className="quiet" onClick={onDone}>
        Clear selection
      </button>
      {asking && (
        <Confirm
          title={live.length === 1 ? "Cancel this run?" : `Cancel ${number(live.length)} runs?`}
          action="Cancel runs"
          danger
          onDo={() => void each(live, "cancel", "Cancelled")}
          onClose={() => setAsking(false)}
        >
          Running tasks stop after the current step. Saved checkpoints are kept, and you can resume from them.
        </Confirm>
      )}
    </div>
  );
}
