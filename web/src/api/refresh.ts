/** Applies live messages to cached data, or refetches it. */
import type { InfiniteData, QueryClient } from "@tanstack/react-query";
import type { Whole } from "../lib/pages";
import { amend, mapped, Rereading } from "./cache";
import { ApiError, api, ask } from "./client";
import { type TaskPage, type TasksWanted, taskPages } from "./queries";
import type { EventView, Overview, TaskProgress, TaskView, WorkerLoad, WorkerView } from "./schema";

const FLUSH_MS = 200;
/** Minimum time between refetches of a list. */
const LISTS_MS = 1500;
/** A list of several pages is not refetched while the user has scrolled down: rows are updated in place. */
const SHALLOW_PAGES = 2;
const REFETCHED_AT_ONCE = 100;
/** As many points as a curve from the server has, before every other one is dropped. */
const SPARK_POINTS = 120;
const OF_A_TASK = new Set(["task", "commands", "checkpoints", "artifacts", "task-events", "why"]);
const OF_ALL_TASKS = new Set(["overview", "overview-list", "task-counts", "compared"]);

/** Collects a burst of messages, then refreshes each query once. */
export class Refresher {
  private readonly tasks = new Set<string>();
  private readonly workflows = new Set<string>();
  private readonly moved = new Map<string, string>();
  private readonly changed = new Set<string>();
  private fleet = false;
  private timer = 0;
  private listsAt = 0;
  private listsTimer = 0;

  private readonly rereading: Rereading;

  constructor(private readonly client: QueryClient) {
    this.rereading = new Rereading(client);
  }

  events(events: readonly EventView[]): void {
    for (const event of events) {
      if (event.task_id) this.tasks.add(event.task_id);
      if (event.workflow_id) this.workflows.add(event.workflow_id);
      const status = event.data?.status;
      if (event.task_id && typeof status === "string") this.moved.set(event.task_id, status);
      if (event.kind.startsWith("worker.") || event.kind === "task.started" || status) this.fleet = true;
    }
    if (!this.timer) this.timer = window.setTimeout(() => this.flush(), FLUSH_MS);
  }

  progress(tasks: readonly TaskProgress[]): void {
    const told = new Map(tasks.map((each) => [each.task_id, each]));
    for (const { task_id, progress } of tasks)
      amend<TaskView>(this.client, ["task", task_id], (old) => ({ ...old, progress }));
    this.patch(told, (task, { progress, loss }) => {
      const { glance } = task;
      const [step, value] = loss ?? [];
      if (!loss || step === undefined || value === undefined) return { ...task, progress };
      // As on the server: a step repeated by a later launch replaces the points after it.
      const before = (glance?.loss ?? []).filter((point) => (point[0] ?? 0) < step);
      const thinned = before.length < SPARK_POINTS ? before : before.filter((_, at) => at % 2 === 0);
      const latest = { ...glance?.latest, loss: value };
      return { ...task, progress, glance: { ...glance, latest, loss: [...thinned, loss] } };
    });
  }

  loads(workers: readonly WorkerLoad[]): void {
    const told = new Map(workers.map(({ worker_id, load, at }) => [worker_id, { load, last_seen_at: at }]));
    amend<Whole<WorkerView>>(this.client, ["workers"], (old) => {
      const items = mapped(old.items, (each) => (told.has(each.id) ? { ...each, ...told.get(each.id) } : each));
      return items === old.items ? old : { ...old, items };
    });
  }

  private flush(): void {
    this.timer = 0;
    if (this.moved.size) this.patch(this.moved, (task, status) => ({ ...task, status }));
    this.rereading.ask(([what, id]) => {
      if (what === "workers") return this.fleet;
      if (what === "workflow") return this.workflows.has(String(id));
      return OF_A_TASK.has(String(what)) && this.tasks.has(String(id));
    });
    for (const id of this.tasks) this.changed.add(id);
    this.refreshLists();
    this.tasks.clear();
    this.workflows.clear();
    this.moved.clear();
    this.fleet = false;
  }

  /** Shows the content of a message immediately, in every list that has the task. */
  private patch<T>(told: ReadonlyMap<string, T>, change: (task: TaskView, news: T) => TaskView): void {
    const row = (task: TaskView): TaskView => {
      const news = told.get(task.id);
      return news === undefined ? task : change(task, news);
    };
    amend<InfiniteData<TaskPage>>(this.client, ["tasks"], (old) => rows(old, told, row));
    amend<Overview>(this.client, ["overview"], (old) => {
      const running = mapped(old.running, row);
      return running === old.running ? old : { ...old, running };
    });
  }

  private refreshLists(): void {
    if (this.listsTimer) return;
    const wait = Math.max(0, this.listsAt + LISTS_MS - Date.now());
    this.listsTimer = window.setTimeout(() => {
      this.listsTimer = 0;
      this.listsAt = Date.now();
      this.rereading.ask(([what]) => OF_ALL_TASKS.has(String(what)));
      this.refreshTasks([...this.changed]);
      this.changed.clear();
    }, wait);
  }

  /** Refetch a list that is shown from the top; of a long one, only the changed rows. */
  private refreshTasks(ids: readonly string[]): void {
    const { client } = this;
    for (const query of client.getQueryCache().findAll({ queryKey: ["tasks"] })) {
      const pages = (query.state.data as InfiniteData<TaskPage> | undefined)?.pages ?? [];
      const deep = pages.length > SHALLOW_PAGES;
      this.rereading.ask((queryKey) => queryKey === query.queryKey, deep ? "none" : "active");
      if (!deep || !query.isActive()) continue;
      const shown = new Set(pages.flatMap((page) => page.items.map((task) => task.id)));
      const mine = ids.filter((id) => shown.has(id));
      for (let start = 0; start < mine.length; start += REFETCHED_AT_ONCE)
        // Without a response, the rows stay as they are in a list marked as changed.
        this.refetchRows(query.queryKey, mine.slice(start, start + REFETCHED_AT_ONCE)).catch(ofNoAnswer);
    }
  }

  /** Refetch some rows; rows that no longer match the list's filters are removed. */
  private async refetchRows(queryKey: readonly unknown[], ids: readonly string[]): Promise<void> {
    const wanted = queryKey[1] as TasksWanted;
    const query = { ...wanted, id: ids.join(","), limit: REFETCHED_AT_ONCE };
    const found = taskPages(await ask(api.GET("/api/v1/tasks", { params: { query } })));
    const told = new Map(found.items.map((task) => [task.id, task]));
    const gone = new Set(ids.filter((id) => !told.has(id)));
    amend<InfiniteData<TaskPage>>(this.client, queryKey, (old) =>
      rows(
        rows(old, told, (task) => told.get(task.id) ?? task),
        gone,
        null,
      ),
    );
  }
}

/** Update or remove the rows of some tasks in a list; pages without them keep their identity. */
function rows(
  list: InfiniteData<TaskPage>,
  ids: { has: (id: string) => boolean },
  change: ((task: TaskView) => TaskView) | null,
): InfiniteData<TaskPage> {
  const pages = mapped(list.pages, (page) => {
    if (!page.items.some((task) => ids.has(task.id))) return page;
    const items = change ? page.items.map(change) : page.items.filter((task) => !ids.has(task.id));
    return { ...page, items };
  });
  return pages === list.pages ? list : { ...list, pages };
}

function ofNoAnswer(error: unknown): void {
  if (!(error instanceof ApiError)) throw error;
}
