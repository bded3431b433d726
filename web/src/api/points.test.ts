import { QueryClient, QueryObserver } from "@tanstack/react-query";
import { expect, test } from "vitest";
import { caughtUp, type Metrics, tellPoints } from "./points";
import type { LivePoints, MetricsView } from "./schema";

const AT = "2026-01-01T00:00:00Z";
const KEY = ["metrics", "one"];
const message = (step: number): LivePoints => ({
  task_id: "one",
  resumed: [],
  points: [{ launch: 1, series: "train", step, epoch: null, at: AT, values: { loss: step } }],
});
const view = (...steps: number[]): MetricsView =>
  ({
    task_id: "one",
    series: "train",
    names: ["loss"],
    total: steps.length,
    points: steps.map((step) => ({ step, at: AT, values: { loss: step } })),
  }) as unknown as MetricsView;
const steps = (metrics: Metrics | undefined) => metrics?.points.map((point) => point.step);

test("points of a task that is not shown are not kept", () => {
  const client = new QueryClient();
  tellPoints(client, message(7));
  expect(steps(caughtUp(view(1, 2)))).toEqual([1, 2]);
});

test("points received during a read are appended, or refetched above the limit", async () => {
  const client = new QueryClient();
  let asked = 0;
  let answer: (view: MetricsView) => void = () => {};
  const observer = new QueryObserver<Metrics>(client, {
    queryKey: KEY,
    queryFn: async ({ signal }) => {
      asked += 1;
      const read = await new Promise<MetricsView>((resolve) => {
        answer = resolve;
      });
      signal.throwIfAborted();
      return caughtUp(read);
    },
  });
  const leave = observer.subscribe(() => {});
  tellPoints(client, message(2));
  answer(view(1));
  await expect.poll(() => steps(client.getQueryData(KEY))).toEqual([1, 2]);
  void observer.refetch();
  for (let step = 3; step < 1010; step += 1) tellPoints(client, message(step));
  await expect.poll(() => asked).toBe(3);
  answer(view(1, 2, 2000));
  await expect.poll(() => steps(client.getQueryData(KEY))?.at(-1)).toBe(2000);
  // Another machine resumes from its own checkpoint: the points that led to it count again, so refetch.
  tellPoints(client, { ...message(41), resumed: [{ launch: 3, from_step: 40 }] });
  await expect.poll(() => asked).toBe(4);
  tellPoints(client, { ...message(41), resumed: [{ launch: 4, from_step: 40 }] });
  await expect.poll(() => asked).toBe(5);
  answer(view(39, 40, 41));
  await expect.poll(() => steps(client.getQueryData(KEY))).toEqual([39, 40, 41]);
  leave();
});

test("a launch that resumes from an earlier step makes zoom data stale", () => {
  const client = new QueryClient();
  client.setQueryData(["range", "one", 0, 9], view(1));
  tellPoints(client, message(2));
  expect(client.getQueryState(["range", "one", 0, 9])?.isInvalidated).toBe(false);
  tellPoints(client, { ...message(2), resumed: [{ launch: 2, from_step: 1 }] });
  expect(client.getQueryState(["range", "one", 0, 9])?.isInvalidated).toBe(true);
});
