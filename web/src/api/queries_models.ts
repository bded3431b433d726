/** Queries of the fine-tune wizard and the models page. */
import { queryOptions } from "@tanstack/react-query";
import { api, ask } from "./client";
import type { ArtifactView } from "./schema";

const LISTED = 200;

/** Complete models on the server, uploaded or made by runs: newest first, each once. */
export const modelsQuery = queryOptions({
  queryKey: ["models", "files"],
  queryFn: async ({ signal }): Promise<ArtifactView[]> => {
    const query = { kind: "model", limit: LISTED };
    const { items } = await ask(api.GET("/api/v1/artifacts", { params: { query }, signal }));
    const seen = new Set<string>();
    return items.filter((each) => !seen.has(each.digest) && seen.add(each.digest));
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
