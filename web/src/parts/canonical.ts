/** A URL may use an id prefix or a name; live messages use the full id. */
import { type QueryClient, useQueryClient } from "@tanstack/react-query";
import { useEffect } from "react";

/** Replace the id in the URL with the full id, and move cached data to it. */
export function useCanonical(
  what: string,
  pairs: readonly (readonly [given: string, found: { id: string } | undefined])[],
  replace: (ids: string[]) => void,
): void {
  const client = useQueryClient();
  const ids = pairs.map(([given, found]) => found?.id ?? given);
  const other = pairs.some(([given], at) => given !== ids[at]);
  const settled = pairs.every(([, found]) => found);
  // biome-ignore lint/correctness/useExhaustiveDependencies: `ids` as one text
  useEffect(() => {
    if (!other || !settled) return;
    for (const [, found] of pairs) if (found) handOver(client, what, found);
    replace(ids);
  }, [ids.join(","), other, settled]);
}

/** Data that was fetched under another name is reused. */
function handOver(client: QueryClient, what: string, found: { id: string }): void {
  if (client.getQueryData([what, found.id]) === undefined) client.setQueryData([what, found.id], found);
}
