/** What the page asks the server for: one function for each thing, with the key that live events refresh it by. */
import { infiniteQueryOptions, keepPreviousData, queryOptions } from "@tanstack/react-query";
import { api, ask } from "./client";
import { caughtUp, type Metrics } from "./points";
import type { PageTaskView, paths } from "./schema";

/** Enough to fill any screen; the rest of a list comes as somebody scrolls. */
const FIRST_ROWS = 100;
const MORE_ROWS = 1000;
/** More than a chart has dots beside each other. */
const MOST_POINTS = 2_000;
/** A worker that has fallen silent is told of by no event. */
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
}

export interface TasksWanted extends TasksChoice {
  sort?: ListSort;
}

type ListQuery = NonNullable<paths["/api/v1/tasks"]["get"]["parameters"]["query"]>;
export type ListSort = NonNullable<ListQuery["sort"]>;
export type TaskPage = PageTaskView;

/** A list that was asked for with a parameter comes in pages; without any it is v1's. */
export function taskPages(answer: PageTaskView | unknown[]): TaskPage {
  if (Array.isArray(answer)) throw new TypeError("v1's list of tasks came where pages were asked for");
  return answer;
}

/** The tasks that pass a filter, page by page. */
export const tasksQuery = (wanted: TasksWanted) =>
  infiniteQueryOptions({
    queryKey: ["tasks", wanted],
    initialPageParam: undefined as string | undefined,
    queryFn: async ({ pageParam: cursor, signal }) => {
      const query = { ...wanted, limit: cursor === undefined ? FIRST_ROWS : MORE_ROWS, cursor };
      return taskPages(await ask(api.GET("/api/v1/tasks", { params: { query }, signal })));
    },
    getNextPageParam: (last) => last.next_cursor ?? undefined,
    // While somebody types, what was found before stays.
    placeholderData: keepPreviousData,
    staleTime: Number.POSITIVE_INFINITY,
  });

/** How many tasks of each status, kind, owner and worker there are. */
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
      ask(
        api.GET("/api/v1/tasks/{task_id}/artifacts", {
          params: { path: { task_id: id }, query: { limit: 200 } },
          signal,
        }),
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
    queryFn: ({ signal }) =>
      ask(api.GET("/api/v1/events", { params: { query: { task_id: id, limit: 1000 } }, signal })),
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
  queryFn: ({ signal }) => ask(api.GET("/api/v1/workers", { params: { query: { limit: 500 } }, signal })),
  refetchInterval: SILENT_MS,
});

/** A task's points, thinned to what a chart can show; what it logs from then on is told (`followPoints`). */
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

/** The points of a range of steps, as fine as a chart can show them. */
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
