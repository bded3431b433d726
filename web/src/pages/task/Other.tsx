/** A series that a task logs beside its training's: another training of the same process, an evaluation, a script's own. */
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
  /** When the training's first point was logged: there all times begin. */
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
