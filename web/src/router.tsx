/** Pages and their URLs; search parameters are validated here. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { createRootRoute, createRoute, createRouter } from "@tanstack/react-router";
import { useEffect } from "react";
import { infoQuery } from "./api/queries";
import { type ChartSearch, chartSearch } from "./lib/chartview";
import { FORMS, type Form } from "./lib/models";
import { isSort } from "./lib/runcolumns";
import { STATUSES } from "./lib/words";
import { Login } from "./pages/Login";
import { Overview } from "./pages/Overview";
import { lazyPage } from "./parts/lazy";
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
  component: lazyPage(() => import("./pages/Tasks"), "Tasks"),
});
const taskRoute = createRoute({
  getParentRoute: () => rootRoute,
  path: "/tasks/$taskId",
  validateSearch: (given: Record<string, unknown>): { tab?: Tab } & ChartSearch => ({
    tab: oneOf(given.tab, TABS),
    ...chartSearch(given),
  }),
  component: lazyPage(() => import("./pages/task/Task"), "Task"),
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
  component: lazyPage(() => import("./pages/New"), "New"),
});
const trainRoute = createRoute({
  getParentRoute: () => rootRoute,
  path: "/train",
  validateSearch: (given: Record<string, unknown>): { data?: string; from?: string; model?: string } => ({
    data: text(given.data),
    from: text(given.from),
    model: text(given.model),
  }),
  component: lazyPage(() => import("./pages/Train"), "Train"),
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
  component: lazyPage(() => import("./pages/Compare"), "Compare"),
});
const workflowRoute = createRoute({
  getParentRoute: () => rootRoute,
  path: "/workflows/$workflowId",
  component: lazyPage(() => import("./pages/Workflow"), "Workflow"),
});
const workersRoute = createRoute({
  getParentRoute: () => rootRoute,
  path: "/workers",
  validateSearch: (given: Record<string, unknown>): { join?: true } => ({ join: given.join === true || undefined }),
  component: lazyPage(() => import("./pages/Workers"), "Workers"),
});
export const SPANS = ["1", "6", "24"] as const;
const workerRoute = createRoute({
  getParentRoute: () => rootRoute,
  path: "/workers/$workerId",
  validateSearch: (given: Record<string, unknown>): { hours?: (typeof SPANS)[number] } => ({
    hours: oneOf(text(given.hours), SPANS),
  }),
  component: lazyPage(() => import("./pages/workers/Worker"), "Worker"),
});
const federationsRoute = createRoute({
  getParentRoute: () => rootRoute,
  path: "/federations",
  component: lazyPage(() => import("./pages/Federations"), "Federations"),
});
const federationRoute = createRoute({
  getParentRoute: () => rootRoute,
  path: "/federations/$name",
  validateSearch: (given: Record<string, unknown>): { version?: number } => ({ version: whole(given.version, 1) }),
  component: lazyPage(() => import("./pages/Federation"), "Federation"),
});
const sweepsRoute = createRoute({
  getParentRoute: () => rootRoute,
  path: "/sweeps",
  component: lazyPage(() => import("./pages/Sweeps"), "Sweeps"),
});
const sweepRoute = createRoute({
  getParentRoute: () => rootRoute,
  path: "/sweeps/$name",
  component: lazyPage(() => import("./pages/Sweep"), "Sweep"),
});
const campaignsRoute = createRoute({
  getParentRoute: () => rootRoute,
  path: "/campaigns",
  component: lazyPage(() => import("./pages/Campaigns"), "Campaigns"),
});
const campaignRoute = createRoute({
  getParentRoute: () => rootRoute,
  path: "/campaigns/$name",
  validateSearch: (given: Record<string, unknown>): { cycle?: number } => ({ cycle: whole(given.cycle, 0) }),
  component: lazyPage(() => import("./pages/Campaign"), "Campaign"),
});
const datasetsRoute = createRoute({
  getParentRoute: () => rootRoute,
  path: "/datasets",
  validateSearch: (given: Record<string, unknown>): { id?: string; preview?: string; made?: boolean } => ({
    id: text(given.id),
    preview: text(given.preview),
    made: given.made === true || undefined,
  }),
  component: lazyPage(() => import("./pages/Datasets"), "Datasets"),
});
const modelsRoute = createRoute({
  getParentRoute: () => rootRoute,
  path: "/models",
  validateSearch: (
    given: Record<string, unknown>,
  ): { id?: string; form?: Form; q?: string; intermediate?: boolean } => ({
    id: text(given.id),
    form: oneOf(given.form, FORMS),
    q: text(given.q),
    intermediate: given.intermediate === true || undefined,
  }),
  component: lazyPage(() => import("./pages/Models"), "Models"),
});
const playgroundRoute = createRoute({
  getParentRoute: () => rootRoute,
  path: "/playground",
  validateSearch: (given: Record<string, unknown>): { task?: string } => ({ task: text(given.task) }),
  component: lazyPage(() => import("./pages/Playground"), "Playground"),
});
const settingsRoute = createRoute({
  getParentRoute: () => rootRoute,
  path: "/settings",
  component: lazyPage(() => import("./pages/Settings"), "Settings"),
});
const docsRoute = createRoute({
  getParentRoute: () => rootRoute,
  path: "/docs/$",
  component: lazyPage(() => import("./pages/Docs"), "Docs"),
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
  sweepsRoute,
  sweepRoute,
  federationsRoute,
  federationRoute,
  campaignsRoute,
  campaignRoute,
  datasetsRoute,
  modelsRoute,
  playgroundRoute,
  settingsRoute,
  docsRoute,
]);

export const router = createRouter({
  routeTree,
  basepath: "/ui",
  defaultPreload: "intent",
  defaultErrorComponent: ({ error }) => <Failed error={error} retry={() => location.reload()} />,
  defaultPendingComponent: () => <Loading />,
});

declare module "@tanstack/react-router" {
  interface Register {
    router: typeof router;
  }
}
