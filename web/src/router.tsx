/** Pages and their URLs; search parameters are validated here. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { createRootRoute, createRoute, createRouter, lazyRouteComponent } from "@tanstack/react-router";
import { useEffect } from "react";
import { infoQuery } from "./api/queries";
import { type ChartSearch, chartSearch } from "./lib/chartview";
import { isSort } from "./lib/runcolumns";
import { STATUSES } from "./lib/words";
import { Login } from "./pages/Login";
import { Overview } from "./pages/Overview";
import { Shell } from "./parts/Shell";
import { Empty, Failed, Loading } from "./parts/states";

const rootRoute = createRootRoute({ component: Gate, notFoundComponent: NothingHere });

/** Redirect to the login without a session; the URL is kept, so that it opens afterwards. */
function Gate() {
  const info = useQuery(infoQuery);
  const client = useQueryClient();
  const ended = info.data?.authenticated === false;
  useEffect(() => {
    // Cached data of one session is not for the next one, however the session ended.
    if (ended) client.removeQueries({ predicate: (query) => query.queryKey[0] !== "info" });
  }, [ended, client]);
  if (info.data) return info.data.authenticated ? <Shell info={info.data} /> : <Login />;
  return (
    <main className="login">
      {info.error ? <Failed error={info.error} retry={() => void info.refetch()} /> : <Loading />}
    </main>
  );
}

function NothingHere() {
  return (
    <div className="page">
      <Empty title="Page not found">Check the URL, or go to the overview.</Empty>
    </div>
  );
}

const text = (value: unknown): string | undefined =>
  typeof value === "string" && value ? value : typeof value === "number" ? String(value) : undefined;
const whole = (value: unknown, least: number): number | undefined =>
  Number.isSafeInteger(value) && (value as number) >= least ? (value as number) : undefined;
const oneOf = <T extends string>(value: unknown, allowed: readonly T[]): T | undefined =>
  allowed.find((each) => each === value);

export interface TasksSearch {
  q?: string;
  status?: string;
  kind?: string;
  owner?: string;
  worker?: string;
  model?: string;
  method?: string;
  tag?: string;
  /** A column of the table. */
  sort?: string;
  up?: boolean;
  group?: boolean;
}

export interface CompareSearch extends ChartSearch {
  /** Ids of the runs. */
  tasks?: string;
  /** Ids of the runs whose curves are shown; by default the first ones. */
  curves?: string;
  /** The metric that hyperparameters are plotted against. */
  goal?: string;
}

export const TABS = ["charts", "log", "files", "predictions", "spec", "history"] as const;
export type Tab = (typeof TABS)[number];

const overviewRoute = createRoute({ getParentRoute: () => rootRoute, path: "/", component: Overview });
const tasksRoute = createRoute({
  getParentRoute: () => rootRoute,
  path: "/tasks",
  validateSearch: (given: Record<string, unknown>): TasksSearch => ({
    q: text(given.q),
    status:
      text(given.status)
        ?.split(",")
        .filter((each) => (STATUSES as readonly string[]).includes(each))
        .join(",") || undefined,
    kind: text(given.kind),
    owner: text(given.owner),
    worker: text(given.worker),
    model: text(given.model),
    method: text(given.method),
    tag: text(given.tag),
    sort: typeof given.sort === "string" && isSort(given.sort) ? given.sort : undefined,
    up: given.up === true || undefined,
    group: given.group === true || undefined,
  }),
  component: lazyRouteComponent(() => import("./pages/Tasks"), "Tasks"),
});
const taskRoute = createRoute({
  getParentRoute: () => rootRoute,
  path: "/tasks/$taskId",
  validateSearch: (given: Record<string, unknown>): { tab?: Tab } & ChartSearch => ({
    tab: oneOf(given.tab, TABS),
    ...chartSearch(given),
  }),
  component: lazyRouteComponent(() => import("./pages/task/Task"), "Task"),
});
const newRoute = createRoute({
  getParentRoute: () => rootRoute,
  path: "/new",
  validateSearch: (
    given: Record<string, unknown>,
  ): { template?: string; from?: string; data?: string; worker?: string } => ({
    template: text(given.template),
    from: text(given.from),
    data: text(given.data),
    worker: text(given.worker),
  }),
  component: lazyRouteComponent(() => import("./pages/New"), "New"),
});
const trainRoute = createRoute({
  getParentRoute: () => rootRoute,
  path: "/train",
  validateSearch: (given: Record<string, unknown>): { data?: string; from?: string } => ({
    data: text(given.data),
    from: text(given.from),
  }),
  component: lazyRouteComponent(() => import("./pages/Train"), "Train"),
});
const compareRoute = createRoute({
  getParentRoute: () => rootRoute,
  path: "/compare",
  validateSearch: (given: Record<string, unknown>): CompareSearch => ({
    tasks: text(given.tasks),
    curves: text(given.curves),
    goal: text(given.goal),
    ...chartSearch(given),
  }),
  component: lazyRouteComponent(() => import("./pages/Compare"), "Compare"),
});
const workflowRoute = createRoute({
  getParentRoute: () => rootRoute,
  path: "/workflows/$workflowId",
  component: lazyRouteComponent(() => import("./pages/Workflow"), "Workflow"),
});
const workersRoute = createRoute({
  getParentRoute: () => rootRoute,
  path: "/workers",
  component: lazyRouteComponent(() => import("./pages/Workers"), "Workers"),
});
export const SPANS = ["1", "6", "24"] as const;
const workerRoute = createRoute({
  getParentRoute: () => rootRoute,
  path: "/workers/$workerId",
  validateSearch: (given: Record<string, unknown>): { hours?: (typeof SPANS)[number] } => ({
    hours: oneOf(text(given.hours), SPANS),
  }),
  component: lazyRouteComponent(() => import("./pages/workers/Worker"), "Worker"),
});
const federationsRoute = createRoute({
  getParentRoute: () => rootRoute,
  path: "/federations",
  component: lazyRouteComponent(() => import("./pages/Federations"), "Federations"),
});
const federationRoute = createRoute({
  getParentRoute: () => rootRoute,
  path: "/federations/$name",
  validateSearch: (given: Record<string, unknown>): { version?: number } => ({ version: whole(given.version, 1) }),
  component: lazyRouteComponent(() => import("./pages/Federation"), "Federation"),
});
const campaignsRoute = createRoute({
  getParentRoute: () => rootRoute,
  path: "/campaigns",
  component: lazyRouteComponent(() => import("./pages/Campaigns"), "Campaigns"),
});
const campaignRoute = createRoute({
  getParentRoute: () => rootRoute,
  path: "/campaigns/$name",
  validateSearch: (given: Record<string, unknown>): { cycle?: number } => ({ cycle: whole(given.cycle, 0) }),
  component: lazyRouteComponent(() => import("./pages/Campaign"), "Campaign"),
});
const datasetsRoute = createRoute({
  getParentRoute: () => rootRoute,
  path: "/datasets",
  validateSearch: (given: Record<string, unknown>): { id?: string; preview?: string } => ({
    id: text(given.id),
    preview: text(given.preview),
  }),
  component: lazyRouteComponent(() => import("./pages/Datasets"), "Datasets"),
});
const playgroundRoute = createRoute({
  getParentRoute: () => rootRoute,
  path: "/playground",
  validateSearch: (given: Record<string, unknown>): { task?: string } => ({ task: text(given.task) }),
  component: lazyRouteComponent(() => import("./pages/Playground"), "Playground"),
});
const settingsRoute = createRoute({
  getParentRoute: () => rootRoute,
  path: "/settings",
  component: lazyRouteComponent(() => import("./pages/Settings"), "Settings"),
});

const routeTree = rootRoute.addChildren([
  overviewRoute,
  tasksRoute,
  taskRoute,
  newRoute,
  trainRoute,
  compareRoute,
  workflowRoute,
  workersRoute,
  workerRoute,
  federationsRoute,
  federationRoute,
  campaignsRoute,
  campaignRoute,
  datasetsRoute,
  playgroundRoute,
  settingsRoute,
]);

export const router = createRouter({
  routeTree,
  basepath: "/ui",
  defaultPreload: "intent",
  defaultErrorComponent: ({ error, reset }) => <Failed error={error} retry={reset} />,
  defaultPendingComponent: () => <Loading />,
});

declare module "@tanstack/react-router" {
  interface Register {
    router: typeof router;
  }
}
