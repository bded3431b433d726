/** Queries to the server: one function each, with the key that live events use to refresh it. */
import { infiniteQueryOptions, keepPreviousData, queryOptions } from "@tanstack/react-query";
import { whole } from "../lib/pages";
import { api, ask } from "./client";
import { caughtUp, type Metrics } from "./points";
import type { ArtifactView, EventView, PageTaskView, WorkerView } from "./schema";

/** Enough to fill any screen; the rest of a list loads on scroll. */
const FIRST_ROWS = 100;
const MORE_ROWS = 1000;
/** For lists that are read completely: page size and limit. */
export const PAGE_ROWS = 1000;
export const MOST_ROWS = 5000;
/** More points than a chart has pixels in width. */
const MOST_POINTS = 2_000;
const MOST_SAMPLES = 500;
const SAMPLE_MS = 15_000;
/** A worker that stops sending heartbeats triggers no event. */
const SILENT_MS = 30_000;

export const infoQuery = queryOptions({
  queryKey: ["info"],
  queryFn: () => ask(api.GET("/api/v1/info")),
  staleTime: 60_000,
});

export interface TasksChoice {
  q?: string;
  status?: string;
  kind?: string;
  owner?: string;
  worker_id?: string;
  model?: string;
  method?: string;
  tag?: string;
}

export interface TasksWanted extends TasksChoice {
  sort?: string;
  /** With metrics and loss curves. */
  glance?: boolean;
}

export type TaskPage = PageTaskView;

/** A list request with parameters returns pages; without parameters it returns the v1 format. */
export function taskPages(answer: PageTaskView | unknown[]): TaskPage {
  if (Array.isArray(answer)) throw new TypeError("v1's list of tasks came where pages were asked for");
  return answer;
}

/** Tasks that match a filter, page by page. */
export const tasksQuery = (wanted: TasksWanted) =>
  infiniteQueryOptions({
    queryKey: ["tasks", wanted],
    initialPageParam: undefined as string | undefined,
    queryFn: async ({ pageParam: cursor, signal }) => {
      const query = { ...wanted, limit: cursor === undefined ? FIRST_ROWS : MORE_ROWS, cursor };
      return taskPages(await ask(api.GET("/api/v1/tasks", { params: { query }, signal })));
    },
    getNextPageParam: (last) => last.next_cursor ?? undefined,
    // While the user types, the previous results stay.
    placeholderData: keepPreviousData,
    staleTime: Number.POSITIVE_INFINITY,
  });

/** Number of tasks by status, kind, owner and worker. */
export const taskCountsQuery = (choice: TasksChoice) =>
  queryOptions({
    queryKey: ["task-counts", choice],
    queryFn: ({ signal }) => ask(api.GET("/api/v1/tasks/counts", { params: { query: choice }, signal })),
    placeholderData: keepPreviousData,
  });

export const overviewQuery = queryOptions({
  queryKey: ["overview"],
  queryFn: ({ signal }) => ask(api.GET("/api/v1/overview", { signal })),
  refetchInterval: SILENT_MS,
});

/** Several runs with their metrics and configurations, in one request. */
export const comparedQuery = (ids: readonly string[]) =>
  queryOptions({
    queryKey: ["compared", ids],
    queryFn: async ({ signal }) => {
      const query = { id: ids.join(","), glance: true, config: true, limit: PAGE_ROWS };
      const { items } = taskPages(await ask(api.GET("/api/v1/tasks", { params: { query }, signal })));
      return ids.flatMap((id) => items.find((each) => each.id === id) ?? []);
    },
    enabled: ids.length > 0,
    placeholderData: keepPreviousData,
  });

const task = (task_id: string) => ({ params: { path: { task_id } } });

export const taskQuery = (id: string) =>
  queryOptions({
    queryKey: ["task", id],
    queryFn: ({ signal }) => ask(api.GET("/api/v1/tasks/{task_id}", { ...task(id), signal })),
  });

export const whyQuery = (id: string) =>
  queryOptions({
    queryKey: ["why", id],
    queryFn: ({ signal }) => ask(api.GET("/api/v1/tasks/{task_id}/why", { ...task(id), signal })),
  });

export const commandsQuery = (id: string) =>
  queryOptions({
    queryKey: ["commands", id],
    queryFn: ({ signal }) => ask(api.GET("/api/v1/tasks/{task_id}/commands", { ...task(id), signal })),
  });

export const checkpointsQuery = (id: string) =>
  queryOptions({
    queryKey: ["checkpoints", id],
    queryFn: ({ signal }) => ask(api.GET("/api/v1/tasks/{task_id}/checkpoints", { ...task(id), signal })),
  });

export const artifactsQuery = (id: string) =>
  queryOptions({
    queryKey: ["artifacts", id],
    queryFn: ({ signal }) =>
      whole<ArtifactView>(
        (cursor) =>
          ask(
            api.GET("/api/v1/tasks/{task_id}/artifacts", {
              params: { path: { task_id: id }, query: { limit: PAGE_ROWS, cursor } },
              signal,
            }),
          ),
        MOST_ROWS,
      ),
  });

export const artifactQuery = (id: string) =>
  queryOptions({
    queryKey: ["artifact", id],
    queryFn: ({ signal }) =>
      ask(api.GET("/api/v1/artifacts/{artifact_id}", { params: { path: { artifact_id: id } }, signal })),
    staleTime: Number.POSITIVE_INFINITY,
  });

export const taskEventsQuery = (id: string) =>
  queryOptions({
    queryKey: ["task-events", id],
    // Past events do not change: only new ones are fetched.
    queryFn: async ({ client, queryKey, signal }): Promise<EventView[]> => {
      const found = [...(client.getQueryData<EventView[]>(queryKey) ?? [])];
      while (true) {
        const query = { task_id: id, limit: PAGE_ROWS, after: found.at(-1)?.id };
        const page = await ask(api.GET("/api/v1/events", { params: { query }, signal }));
        found.push(...page);
        if (page.length < PAGE_ROWS) return found;
      }
    },
  });

/** When a task was paused and resumed. */
export const pausesQuery = (id: string) =>
  queryOptions({
    queryKey: ["task-events", id, "pauses"],
    queryFn: ({ signal }) => {
      const query = { task_id: id, kinds: "task.paused,task.resumed", limit: PAGE_ROWS };
      return ask(api.GET("/api/v1/events", { params: { query }, signal }));
    },
  });

export const predictionsQuery = (id: string) =>
  queryOptions({
    queryKey: ["predictions", id],
    queryFn: ({ signal }) =>
      ask(api.GET("/api/training/predictions/{task_id}", { params: { path: { task_id: id } }, signal })),
  });

export const workflowQuery = (id: string) =>
  queryOptions({
    queryKey: ["workflow", id],
    queryFn: ({ signal }) =>
      ask(api.GET("/api/v1/workflows/{workflow_id}", { params: { path: { workflow_id: id } }, signal })),
  });

export const workersQuery = queryOptions({
  queryKey: ["workers"],
  queryFn: ({ signal }) =>
    whole<WorkerView>(
      (cursor) => ask(api.GET("/api/v1/workers", { params: { query: { limit: PAGE_ROWS, cursor } }, signal })),
      MOST_ROWS,
    ),
  refetchInterval: SILENT_MS,
});

/** A task's points, thinned for a chart; later points come from the live stream (`followPoints`). */
export const metricsQuery = (id: string) =>
  queryOptions({
    queryKey: ["metrics", id],
    queryFn: async ({ signal }): Promise<Metrics> =>
      caughtUp(
        await ask(
          api.GET("/api/v1/tasks/{task_id}/metrics", {
            params: { path: { task_id: id }, query: { max_points: MOST_POINTS } },
            signal,
          }),
        ),
      ),
    staleTime: Number.POSITIVE_INFINITY,
    structuralSharing: false,
  });

/** A series other than the training series, polled every 15 s; `system`: resource usage of the task's processes. */
export const pointsQuery = (id: string, series: string, ended: boolean) =>
  queryOptions({
    queryKey: ["points", id, series, ended],
    queryFn: ({ signal }) =>
      ask(
        api.GET("/api/v1/tasks/{task_id}/metrics", {
          params: {
            path: { task_id: id },
            query: { series, max_points: series === "system" ? MOST_SAMPLES : MOST_POINTS },
          },
          signal,
        }),
      ),
    refetchInterval: ended ? false : SAMPLE_MS,
    placeholderData: keepPreviousData,
  });

/** The series that a task has logged, besides training and resource usage. */
export const otherSeriesQuery = (id: string, ended: boolean) =>
  queryOptions({
    queryKey: ["series", id, ended],
    queryFn: async ({ signal }) => {
      const found = await ask(api.GET("/api/v1/tasks/{task_id}/series", { ...task(id), signal }));
      return found.map((each) => each.series).filter((name) => name !== "train" && name !== "system");
    },
    refetchInterval: ended ? false : SAMPLE_MS,
    placeholderData: keepPreviousData,
  });

/** The points in a range of steps, at chart resolution. */
export const rangeQuery = (id: string, low: number, high: number, wanted: boolean) =>
  queryOptions({
    queryKey: ["range", id, low, high],
    queryFn: ({ signal }) =>
      ask(
        api.GET("/api/v1/tasks/{task_id}/metrics", {
          params: {
            path: { task_id: id },
            query: { after_step: Math.floor(low) - 1, to_step: Math.ceil(high), max_points: MOST_POINTS },
          },
          signal,
        }),
      ),
    enabled: wanted,
    structuralSharing: false,
  });
