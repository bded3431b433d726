/** Queries about the server and its machines; `queries.ts` is about tasks. */
import { queryOptions } from "@tanstack/react-query";
import { serverNow } from "../lib/servertime";
import { api, ask } from "./client";
import type { LoadSample, PageTaskView } from "./schema";

const ALL = 1000;

export const serverQuery = queryOptions({
  queryKey: ["server"],
  queryFn: ({ signal }) => ask(api.GET("/api/v1/server", { signal })),
  staleTime: 60_000,
});

export const storageQuery = queryOptions({
  queryKey: ["storage"],
  queryFn: ({ signal }) => ask(api.GET("/api/v1/storage", { signal })),
  refetchInterval: 30_000,
});

export const keysQuery = queryOptions({
  queryKey: ["keys"],
  queryFn: ({ signal }) => ask(api.GET("/api/v1/keys", { params: { query: { limit: ALL } }, signal })),
});

export const channelsQuery = queryOptions({
  queryKey: ["channels"],
  queryFn: ({ signal }) =>
    ask(api.GET("/api/v1/notifications/channels", { params: { query: { limit: ALL } }, signal })),
});

export const noticesQuery = queryOptions({
  queryKey: ["notices"],
  queryFn: ({ signal }) => ask(api.GET("/api/v1/notifications", { params: { query: { limit: 20 } }, signal })),
  refetchInterval: 15_000,
});

export const agentsQuery = queryOptions({
  queryKey: ["agents"],
  queryFn: ({ signal }) => ask(api.GET("/api/training/agents", { signal })),
  refetchInterval: 10_000,
});

const LOADS_MS = 5 * 60_000;

/** Load of a worker in the last `hours`. */
export const loadsQuery = (worker_id: string, hours: number) =>
  queryOptions({
    queryKey: ["loads", worker_id, hours],
    queryFn: async ({ signal }): Promise<LoadSample[]> => {
      const since = new Date(serverNow() - hours * 3_600_000).toISOString();
      const past = await ask(
        api.GET("/api/v1/workers/{worker_id}/history", {
          params: { path: { worker_id }, query: { since, max_points: 1000 } },
          signal,
        }),
      );
      return [...past.samples];
    },
    staleTime: 60_000,
    // Live samples are finer than what the server stores; refetch occasionally so that both agree.
    refetchInterval: LOADS_MS,
  });

/** The newest tasks of a worker; under `workers`, so that whatever makes workers stale makes these stale too. */
export const tasksOfWorkerQuery = (worker_id: string) =>
  queryOptions({
    queryKey: ["workers", worker_id, "tasks"],
    queryFn: async ({ signal }): Promise<PageTaskView> => {
      const page = await ask(api.GET("/api/v1/tasks", { params: { query: { worker_id, limit: 50 } }, signal }));
      // With a limit, the response is a page.
      return page as PageTaskView;
    },
  });

export const edgesQuery = (workflow_id: string) =>
  queryOptions({
    queryKey: ["workflow", workflow_id, "edges"],
    queryFn: ({ signal }) =>
      ask(api.GET("/api/v1/workflows/{workflow_id}/edges", { params: { path: { workflow_id } }, signal })),
  });
