/** The list of tasks as it is shown: searched, sorted, grouped. Pure. */
import type { TaskView } from "../api/schema";
import type { Sort } from "../router";

export type Row = { task: TaskView } | { workflow: string; name: string; tasks: TaskView[] };

/** Every word of the search must stand somewhere in what a row shows. */
export function searched(tasks: readonly TaskView[], q: string | undefined): readonly TaskView[] {
  const words = (q ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length === 0) return tasks;
  return tasks.filter((task) => {
    const text = [
      task.id,
      task.name,
      task.kind,
      task.status,
      task.owner,
      task.worker_id,
      task.workflow_id,
      task.workflow_name,
      task.error,
    ]
      .join(" ")
      .toLowerCase();
    return words.every((word) => text.includes(word));
  });
}

export function sorted(
  tasks: readonly TaskView[],
  sort: Sort | undefined,
  up: boolean | undefined,
  now: number,
): readonly TaskView[] {
  // As it comes from the server: newest first.
  if (!sort || sort === "created") return up ? [...tasks].reverse() : tasks;
  const value = VALUES[sort];
  const sign = up ? 1 : -1;
  return tasks
    .map((task, at) => [value(task, now), at, task] as const)
    .sort((a, b) => (a[0] < b[0] ? -sign : a[0] > b[0] ? sign : a[1] - b[1]))
    .map((each) => each[2]);
}

const VALUES: Record<Exclude<Sort, "created">, (task: TaskView, now: number) => string | number> = {
  name: (task) => task.name.toLowerCase(),
  kind: (task) => task.kind,
  status: (task) => task.status,
  owner: (task) => task.owner,
  worker: (task) => task.worker_id ?? "",
  ran: (task, now) =>
    (task.ran_s ?? 0) + (task.status === "running" && task.started_at ? (now - Date.parse(task.started_at)) / 1000 : 0),
};

/** Put the tasks of a workflow under a row of its own, where the first of them stands. */
export function grouped(tasks: readonly TaskView[]): Row[] {
  const groups = new Map<string, TaskView[]>();
  for (const task of tasks) {
    const group = groups.get(task.workflow_id);
    if (group) group.push(task);
    else groups.set(task.workflow_id, [task]);
  }
  return [...groups].flatMap(([workflow, members]): Row[] => [
    { workflow, name: members[0]?.workflow_name ?? workflow, tasks: members },
    ...members.map((task) => ({ task })),
  ]);
}
