import { QueryClient, QueryObserver } from "@tanstack/react-query";
import { beforeEach, expect, test, vi } from "vitest";
import type { EventView, Load, TaskProgress, TaskView, WorkerView } from "./schema";

vi.hoisted(() => {
  vi.stubGlobal("location", { origin: "http://here" });
  vi.stubGlobal("window", globalThis);
});
const { Refresher } = await import("./refresh");

const AT = "2026-01-01T00:00:00Z";
const LIST = ["tasks", {}];
const progress = (task_id: string): TaskProgress =>
  ({ task_id, workflow_id: "w", progress: { phase: "training", step: 3 } }) as TaskProgress;
const moved = (task_id: string): EventView =>
  ({ id: 1, at: AT, kind: "task.running", task_id, data: { status: "running" } }) as unknown as EventView;
const page = (...ids: string[]) => ({ items: ids.map((id) => ({ id, status: "queued" }) as TaskView) });

let client: QueryClient;
beforeEach(() => {
  vi.useFakeTimers();
  client = new QueryClient({ defaultOptions: { queries: { retry: false } } });
});

test("a list that lacks a new task stays stale, whatever its rows receive", async () => {
  client.setQueryData(LIST, { pages: [page("one")], pageParams: [undefined] });
  await client.invalidateQueries({ queryKey: LIST });
  const refresher = new Refresher(client);
  refresher.progress([progress("one")]);
  const state = () => client.getQueryState<{ pages: { items: TaskView[] }[] }>(LIST);
  expect(state()?.data?.pages[0]?.items[0]?.progress?.step).toBe(3);
  expect(state()?.isInvalidated).toBe(true);
  refresher.progress([progress("another")]);
  refresher.events([moved("one")]);
  await vi.advanceTimersByTimeAsync(300);
  expect(state()?.data?.pages[0]?.items[0]?.status).toBe("running");
  expect(state()?.isInvalidated).toBe(true);
});

test("entries that a message does not touch keep their identity", () => {
  client.setQueryData(LIST, { pages: [page("one")], pageParams: [undefined] });
  client.setQueryData(["overview"], { running: page("one").items });
  const [list, overview] = [client.getQueryState(LIST), client.getQueryState(["overview"])];
  new Refresher(client).progress([progress("another")]);
  expect(client.getQueryState(LIST)).toBe(list);
  expect(client.getQueryState(["overview"])).toBe(overview);
});

test("a live load sample has the timestamp of its history", () => {
  client.setQueryData(["workers"], { items: [{ id: "w", load: null, last_seen_at: "2020-01-01T00:00:00Z" }] });
  new Refresher(client).loads([{ worker_id: "w", at: AT, load: { cpu_percent: 1 } as unknown as Load }]);
  const [worker] = client.getQueryData<{ items: WorkerView[] }>(["workers"])?.items ?? [];
  expect(worker).toMatchObject({ load: { cpu_percent: 1 }, last_seen_at: AT });
});

test("a request in flight is not cancelled by messages, and is repeated once", async () => {
  let asked = 0;
  let answered = 0;
  const observer = new QueryObserver(client, {
    queryKey: ["task", "one"],
    queryFn: async ({ signal }) => {
      const mine = ++asked;
      await new Promise((resolve) => setTimeout(resolve, 1000));
      if (signal.aborted) throw new Error("broken off");
      answered += 1;
      return { id: "one", asked: mine };
    },
  });
  const leave = observer.subscribe(() => {});
  await vi.advanceTimersByTimeAsync(1100);
  const refresher = new Refresher(client);
  for (let each = 0; each < 12; each += 1) {
    refresher.events([moved("one")]);
    await vi.advanceTimersByTimeAsync(300);
  }
  expect(answered).toBeGreaterThanOrEqual(3);
  await vi.advanceTimersByTimeAsync(3000);
  expect(asked).toBe(answered);
  expect(client.getQueryData<{ asked: number }>(["task", "one"])?.asked).toBe(asked);
  expect(client.getQueryState(["task", "one"])?.isInvalidated).toBe(false);
  leave();
});
