/** A series besides training: a second model in the process, an evaluation, or custom metrics of a script. */
import { useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import { pointsQuery } from "../../api/queries";
import type { TaskAnswer } from "../../api/schema";
import type { ChartView, Zoom } from "../../lib/chartview";
import type { Point } from "../../lib/series";
import { isFinal, plain } from "../../lib/words";
import { Drawn } from "./Drawn";

interface Shown {
  task: TaskAnswer;
  series: string;
  /** Time of the first training point: origin of the time axis. */
  start?: string;
  view: ChartView;
  all: boolean;
  onZoom: (zoom: Zoom) => void;
}

export function Other({ task, series, start, ...shown }: Shown) {
  const found = useQuery(pointsQuery(task.id, series, isFinal(task.status)));
  const points = useMemo((): Point[] => {
    const logged = found.data?.points ?? [];
    return start ? [{ step: 0, at: start, values: {} }, ...logged] : logged;
  }, [found.data, start]);
  return <Drawn {...shown} of={plain(series)} points={points} names={found.data?.names ?? []} />;
}
