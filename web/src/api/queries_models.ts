/** Queries of the fine-tune wizard and the models page. */
import { queryOptions } from "@tanstack/react-query";
import { type Model, modelsOf } from "../lib/models";
import { type Whole, whole } from "../lib/pages";
import { api, ask } from "./client";
import type { ArtifactView } from "./schema";

const LISTED = 200;
const MOST_MODELS = 1000;

/** Adapters, models, GGUF files and checkpoints on the server with their origin, newest first. */
export const libraryQuery = queryOptions({
  queryKey: ["models", "library"],
  queryFn: async ({ signal }): Promise<Whole<Model>> => {
    const { items, more } = await whole<ArtifactView>((cursor) => {
      const query = { kind: "adapter,model,gguf,checkpoint", origin: true, limit: LISTED, cursor };
      return ask(api.GET("/api/v1/artifacts", { params: { query }, signal }));
    }, MOST_MODELS);
    return { items: modelsOf(items), more };
  },
  refetchInterval: 15_000,
});

/** What a run produced, as models. */
export const runModelsQuery = (taskId: string) =>
  queryOptions({
    queryKey: ["models", "run", taskId],
    queryFn: async ({ signal }): Promise<Model[]> => {
      const query = { kind: "adapter,model,gguf", task_id: taskId, origin: true, limit: LISTED };
      return modelsOf((await ask(api.GET("/api/v1/artifacts", { params: { query }, signal }))).items);
    },
  });

/** Complete models on the server, uploaded or made by runs, which they are named after: newest first, each once. */
export const modelsQuery = queryOptions({
  queryKey: ["models", "files"],
  queryFn: async ({ signal }): Promise<ArtifactView[]> => {
    const query = { kind: "model", origin: true, limit: LISTED };
    const { items } = await ask(api.GET("/api/v1/artifacts", { params: { query }, signal }));
    const seen = new Set<string>();
    return modelsOf(items)
      .map(({ artifact, name }) => ({ ...artifact, name }))
      .filter((each) => !seen.has(each.digest) && seen.add(each.digest));
  },
  refetchInterval: 15_000,
});

/** Models on the Hub, searched through the server, so that the browser sends nothing to third parties. */
export const searchQuery = (search: string) =>
  queryOptions({
    queryKey: ["hub", search],
    queryFn: ({ signal }) => ask(api.GET("/api/v1/hub/models", { params: { query: { search } }, signal })),
    enabled: search !== "",
    staleTime: 5 * 60_000,
  });

export const endpointsQuery = queryOptions({
  queryKey: ["endpoints"],
  queryFn: async ({ signal }) =>
    (await ask(api.GET("/api/v1/endpoints", { params: { query: { limit: LISTED } }, signal }))).items,
  refetchInterval: 5_000,
});
