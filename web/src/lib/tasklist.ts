/** Parameters and rows of the task list. Pure. */
import type { TaskView } from "../api/schema";

/** The tasks of a workflow under a group row; `more`: others may not be loaded yet. */
export type Row = { task: TaskView } | { workflow: string; name: string; tasks: TaskView[]; more: boolean };

/** The server's name for a sort order; newest first is the default. */
export function order(sort: string | undefined, up: boolean | undefined): string | undefined {
  if (!sort && !up) return undefined;
  const name = sort === "ran" ? "duration" : (sort ?? "created");
  return up ? name : `-${name}`;
}

/** Add a group row above each sequence of tasks of one workflow; in submission order they are adjacent. */
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
