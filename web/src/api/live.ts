/**
 * The live connection: one stream of server-sent events keeps what the page has fetched fresh.
 *
 * The browser continues a lost stream behind the last message's id; what is not in the stream (metrics, logs) is asked
 * for anew once it is open again. So nothing is missed, whatever happened in between.
 */
import type { InfiniteData, QueryClient } from "@tanstack/react-query";
import { News } from "./news";
import type {
  EventView,
  LiveCampaigns,
  LiveEvents,
  LiveHello,
  LiveProgress,
  Overview,
  PageTaskView,
  ProgressView,
  TaskProgress,
  TaskView,
} from "./schema";

export type LiveState = "connecting" | "open" | "lost";

const FLUSH_MS = 200;
const FIRST_RETRY_MS = 1000;
const LONGEST_RETRY_MS = 15000;
/** A list is fetched again at most this often, however much happens. */
const LISTS_MS = 1500;
const SPARKS_MS = 4000;

let state: LiveState = "connecting";
let source: EventSource | undefined;
let lastId: string | undefined;
let retryMs = FIRST_RETRY_MS;
let retryTimer = 0;
const listeners = new Set<() => void>();

export function liveState(): LiveState {
  return state;
}

export function onLiveState(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function become(next: LiveState): void {
  if (state === next) return;
  state = next;
  for (const listener of listeners) listener();
}

/** Open the stream; the answer closes it. */
export function follow(client: QueryClient): () => void {
  const gather = new Gathered(client);
  const news = new News(client);
  let stopped = false;

  const open = () => {
    if (stopped) return;
    const behind = lastId === undefined ? "" : `?after=${encodeURIComponent(lastId)}`;
    source = new EventSource(`/api/v1/live${behind}`);
    const on = <T>(kind: string, tell: (data: T) => void) =>
      source?.addEventListener(kind, (message: MessageEvent<string>) => {
        lastId = message.lastEventId || lastId;
        tell(JSON.parse(message.data) as T);
      });
    source.onopen = () => {
      const again = state === "lost";
      retryMs = FIRST_RETRY_MS;
      become("open");
      if (again) void client.invalidateQueries();
    };
    on<LiveHello>("hello", ({ missed }) => missed && void client.invalidateQueries());
    on<LiveEvents>("events", ({ events }) => {
      for (const event of events) gather.event(event);
      news.events(events);
    });
    on<LiveProgress>("progress", ({ tasks }) => {
      for (const task of tasks) gather.progress(task);
    });
    on<LiveCampaigns>("campaigns", (told) => news.campaigns(told));
    source.onerror = () => {
      become("lost");
      void client.invalidateQueries({ queryKey: ["info"] });
      // The browser itself goes on only after a broken connection, not after an answer such as 502 or 401.
      if (source?.readyState === EventSource.CLOSED) {
        retryTimer = window.setTimeout(open, retryMs);
        retryMs = Math.min(LONGEST_RETRY_MS, retryMs * 2);
      }
    };
  };
  open();
  return () => {
    stopped = true;
    window.clearTimeout(retryTimer);
    source?.close();
    become("connecting");
  };
}

/** Gathers a burst of events, then refreshes each thing once. */
class Gathered {
  private readonly tasks = new Set<string>();
  private readonly workflows = new Set<string>();
  private readonly moved = new Map<string, string>();
  private readonly told = new Map<string, ProgressView>();
  private fleet = false;
  private timer = 0;
  private listsAt = 0;
  private listsTimer = 0;
  private sparksAt = 0;

  constructor(private readonly client: QueryClient) {}

  event(event: EventView): void {
    if (event.task_id) this.tasks.add(event.task_id);
    if (event.workflow_id) this.workflows.add(event.workflow_id);
    const status = event.data?.status;
    if (event.task_id && typeof status === "string") this.moved.set(event.task_id, status);
    if (event.kind.startsWith("worker.") || event.kind === "task.started" || status) this.fleet = true;
    this.flushSoon();
  }

  progress(task: TaskProgress): void {
    this.told.set(task.task_id, task.progress);
    this.flushSoon();
  }

  private flushSoon(): void {
    if (!this.timer) this.timer = window.setTimeout(() => this.flush(), FLUSH_MS);
  }

  private flush(): void {
    this.timer = 0;
    const client = this.client;
    for (const [id, progress] of this.told) {
      client.setQueryData<TaskView>(["task", id], (old) => (old ? { ...old, progress } : old));
      void client.invalidateQueries({ queryKey: ["metrics", id] });
      void client.invalidateQueries({ queryKey: ["commands", id] });
    }
    for (const id of this.tasks) {
      for (const what of ["task", "commands", "checkpoints", "artifacts", "task-events", "why", "metrics"])
        void client.invalidateQueries({ queryKey: [what, id] });
    }
    for (const id of this.workflows) void client.invalidateQueries({ queryKey: ["workflow", id] });
    if (this.moved.size || this.told.size) this.patchLists();
    if (this.fleet) void client.invalidateQueries({ queryKey: ["workers"] });
    if (this.tasks.size || this.workflows.size || this.fleet) this.refreshLists();
    else if (this.told.size) this.refreshSparks();
    this.tasks.clear();
    this.workflows.clear();
    this.moved.clear();
    this.told.clear();
    this.fleet = false;
  }

  /** What events say themselves is shown at once; the rest of a list follows. */
  private patchLists(): void {
    const { moved, told } = this;
    const patch = (task: TaskView): TaskView => {
      const status = moved.get(task.id);
      const progress = told.get(task.id);
      if (status === undefined && progress === undefined) return task;
      return { ...task, ...(status ? { status } : {}), ...(progress ? { progress } : {}) };
    };
    this.client.setQueriesData<InfiniteData<PageTaskView>>({ queryKey: ["tasks"] }, (old) =>
      old ? { ...old, pages: old.pages.map((page) => ({ ...page, items: page.items.map(patch) })) } : old,
    );
    this.client.setQueryData<Overview>(["overview"], (old) =>
      old ? { ...old, running: old.running.map(patch) } : old,
    );
  }

  /** The lines of running trainings stand in the overview: without news of a status, now and then is enough. */
  private refreshSparks(): void {
    if (Date.now() - this.sparksAt < SPARKS_MS) return;
    this.sparksAt = Date.now();
    void this.client.invalidateQueries({ queryKey: ["overview"] });
  }

  private refreshLists(): void {
    if (this.listsTimer) return;
    const wait = Math.max(0, this.listsAt + LISTS_MS - Date.now());
    this.listsTimer = window.setTimeout(() => {
      this.listsTimer = 0;
      this.listsAt = Date.now();
      for (const what of ["tasks", "overview"]) void this.client.invalidateQueries({ queryKey: [what] });
    }, wait);
  }
}
