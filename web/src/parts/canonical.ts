/** An address may name a thing by the beginning of its id, or by a name; what is told live goes by the whole id. */
import { type QueryClient, useQueryClient } from "@tanstack/react-query";
import { useEffect } from "react";

/** Put the whole id in the place of what the address says, and what is known under the whole id. */
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

/** What was asked for by another name need not be asked for again. */
function handOver(client: QueryClient, what: string, found: { id: string }): void {
  if (client.getQueryData([what, found.id]) === undefined) client.setQueryData([what, found.id], found);
}
