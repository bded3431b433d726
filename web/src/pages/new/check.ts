/** Server-side validation of a workflow file, shortly after its last change. */
import { useQuery } from "@tanstack/react-query";
import { useEffect, useMemo, useState } from "react";
import { ApiError, api, ask } from "../../api/client";
import type { ConcurrencyForecast, FaultView, TaskForecast } from "../../api/schema";
import { inputsOf, type Submitted } from "../../lib/along";

const CHECK_AFTER_MS = 450;
/** Placement changes as workers join and leave. */
const AGAIN_MS = 15_000;

export interface Check {
  faults: FaultView[];
  forecasts: TaskForecast[];
  /** What runs at the same time, if there is more than one task. */
  concurrency?: ConcurrencyForecast | null;
  /** Likely mistakes. */
  warnings: string[];
  busy: boolean;
  error?: ApiError;
}

export function useCheck(text: string, earlier: readonly Submitted[]): Check {
  const [settled, setSettled] = useState(text);
  useEffect(() => {
    const timer = window.setTimeout(() => setSettled(text), CHECK_AFTER_MS);
    return () => window.clearTimeout(timer);
  }, [text]);
  const reply = useQuery({
    queryKey: ["validate", settled, earlier],
    queryFn: ({ signal }) =>
      ask(
        api.POST("/api/v1/workflows/validate", {
          params: { query: { dry_run: true } },
          body: { document: settled, filename: null, inputs: inputsOf(settled, earlier), strict: false },
          signal,
        }),
      ),
    placeholderData: (before) => before,
    gcTime: 30_000,
    refetchInterval: AGAIN_MS,
  });
  const error = reply.error instanceof ApiError ? reply.error : undefined;
  const faults = useMemo(() => [...(error?.faults ?? []), ...(reply.data?.faults ?? [])], [error, reply.data]);
  const { forecasts = [], warnings = [], concurrency } = reply.data ?? {};
  return { faults, forecasts, concurrency, warnings, busy: reply.isFetching || settled !== text, error };
}
