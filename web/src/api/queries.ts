/** What the page asks the server for: one function for each thing, with the key that live events refresh it by. */
import { infiniteQueryOptions, keepPreviousData, queryOptions } from "@tanstack/react-query";
import { whole } from "../lib/pages";
import { api, ask } from "./client";
import { caughtUp, type Metrics } from "./points";
import type { ArtifactView, EventView, PageTaskView, paths, WorkerView } from "./schema";

/** Enough to fill any screen; the rest of a list comes as somebody scrolls. */
const FIRST_ROWS = 100;
const MORE_ROWS = 1000;
/** Of what is read as a whole: a page of it, and where it ends. */
export const PAGE_ROWS = 1000;
export const MOST_ROWS = 5000;
/** More than a chart has dots beside each other. */
const MOST_POINTS = 2_000;
const MOST_SAMPLES = 500;
const SAMPLE_MS = 15_000;
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
    // What has happened stays as it was: only what has come since is read.
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

/** Another series than the training's, asked for each quarter of a minute; `system`: what a task's own processes took. */
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

/** Which series a task has logged, beside that of its training and what its processes took. */
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
