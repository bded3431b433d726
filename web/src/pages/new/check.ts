/** What the server makes of a document, asked a moment after its last change. */
import { useQuery } from "@tanstack/react-query";
import { useEffect, useMemo, useState } from "react";
import { ApiError, api, ask } from "../../api/client";
import type { FaultView, TaskForecast } from "../../api/schema";

const CHECK_AFTER_MS = 450;

export interface Check {
  faults: FaultView[];
  forecasts: TaskForecast[];
  busy: boolean;
  error?: ApiError;
}

export function useCheck(text: string): Check {
  const [settled, setSettled] = useState(text);
  useEffect(() => {
    const timer = window.setTimeout(() => setSettled(text), CHECK_AFTER_MS);
    return () => window.clearTimeout(timer);
  }, [text]);
  const reply = useQuery({
    queryKey: ["validate", settled],
    queryFn: ({ signal }) =>
      ask(
        api.POST("/api/v1/workflows/validate", {
          params: { query: { dry_run: true } },
          body: { document: settled, filename: null, inputs: {}, strict: false },
          signal,
        }),
      ),
    placeholderData: (before) => before,
    gcTime: 30_000,
  });
  const error = reply.error instanceof ApiError ? reply.error : undefined;
  const faults = useMemo(() => [...(error?.faults ?? []), ...(reply.data?.faults ?? [])], [error, reply.data]);
  return { faults, forecasts: reply.data?.forecasts ?? [], busy: reply.isFetching || settled !== text, error };
}
