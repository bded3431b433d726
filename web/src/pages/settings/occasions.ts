import type { ChannelView } from "../../api/schema";

export type Occasion = ChannelView["on"][number];

export const OCCASIONS: readonly Occasion[] = [
  "done",
  "failed",
  "out_of_memory",
  "stalled",
  "paused",
  "worker_lost",
  "promoted",
  "budget",
];
