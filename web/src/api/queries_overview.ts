/** Lists of the overview besides those of `overviewQuery`; live events refresh both. */
import { queryOptions } from "@tanstack/react-query";
import { TRAINING_KINDS } from "../lib/words";
import { api, ask } from "./client";
import { taskPages } from "./queries";
import type { TaskView } from "./schema";

const SHOWN = 6;

const list = (name: string, query: { status: string; kind?: string; sort: string }) =>
  queryOptions({
    queryKey: ["overview-list", name],
    queryFn: async ({ signal }): Promise<TaskView[]> => {
      const answer = await ask(api.GET("/api/v1/tasks", { params: { query: { ...query, limit: SHOWN } }, signal }));
      return [...taskPages(answer).items];
    },
  });

/** Training runs that completed last. */
export const trainedLastQuery = list("trained", {
  status: "completed",
  kind: TRAINING_KINDS.join(","),
  sort: "-finished",
});

export const pausedQuery = list("paused", { status: "paused", sort: "-started" });

/** Whether there is an uploaded dataset. */
export const anyDatasetQuery = queryOptions({
  queryKey: ["datasets", "any"],
  queryFn: async ({ signal }) => {
    const query = { kind: "dataset", limit: 1 };
    return (await ask(api.GET("/api/v1/artifacts", { params: { query }, signal }))).items.length > 0;
  },
});
