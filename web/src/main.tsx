import { MutationCache, QueryCache, QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { RouterProvider } from "@tanstack/react-router";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { ApiError } from "./api/client";
import { toastError } from "./parts/toasts";
import { router } from "./router";
import "./styles/base.css";
import "./styles/parts.css";
import "./styles/pages.css";
import "./styles/lanes.css";

/** The first failing request detects an expired session. */
function noticeEnd(error: unknown): void {
  if (error instanceof ApiError && error.status === 401) void client.invalidateQueries({ queryKey: ["info"] });
}

const client: QueryClient = new QueryClient({
  queryCache: new QueryCache({ onError: noticeEnd }),
  mutationCache: new MutationCache({
    onError: (error) => {
      noticeEnd(error);
      toastError(error);
    },
  }),
  defaultOptions: {
    queries: {
      // Only transient failures are retried; live events refresh the rest.
      retry: (count, error) => count < 2 && !(error instanceof ApiError && error.status >= 400 && error.status < 500),
      staleTime: 5_000,
    },
  },
});

const root = document.getElementById("root");
if (!root) throw new Error("index.html has no #root");
createRoot(root).render(
  <StrictMode>
    <QueryClientProvider client={client}>
      <RouterProvider router={router} />
    </QueryClientProvider>
  </StrictMode>,
);
