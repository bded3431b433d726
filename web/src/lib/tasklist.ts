/** The list of tasks as it is asked for and shown. Pure. */
import type { ListSort } from "../api/queries";
import type { TaskView } from "../api/schema";
import type { Sort } from "../router";

/** The tasks of a workflow under a row of its own; `more` says that there may be others that are not loaded. */
export type Row = { task: TaskView } | { workflow: string; name: string; tasks: TaskView[]; more: boolean };

/** The server's word for an order; the newest first is its own. */
export function order(sort: Sort | undefined, up: boolean | undefined): ListSort | undefined {
  if (!sort && !up) return undefined;
  const name = sort === "ran" ? "duration" : (sort ?? "created");
  return up ? name : `-${name}`;
}

/** Put a row above each run of tasks of one workflow; in the order of submission they stand together. */
export function grouped(tasks: readonly TaskView[], more: boolean): Row[] {
  const rows: Row[] = [];
  let group: Extract<Row, { workflow: string }> | undefined;
  for (const task of tasks) {
    if (group?.workflow !== task.workflow_id) {
      group = { workflow: task.workflow_id, name: task.workflow_name ?? task.workflow_id, tasks: [], more: false };
      rows.push(group);
    }
    group.tasks.push(task);
    rows.push({ task });
  }
  if (group) group.more = more;
  return rows;
}
