/** All hyperparameter sweeps, newest first, and how to start one. */
import { useInfiniteQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { sweepsQuery } from "../api/queries_sweeps";
import type { SweepView } from "../api/schema";
import { number } from "../lib/format";
import { metricName } from "../lib/metrics";
import { Copyable, DocsLink, Status, Time } from "../parts/bits";
import { type Listed, Listing } from "../parts/Listing";
import { useSession } from "../parts/session";
import { Empty } from "../parts/states";

const OPEN = new Set(["running", "pruning", "stopping"]);

const COLUMNS: readonly Listed<SweepView>[] = [
  {
    title: "Sweep",
    phone: true,
    cell: (each) => (
      <Link to="/sweeps/$name" params={{ name: each.id }} className="strong">
        {each.name}
      </Link>
    ),
  },
  { title: "Status", phone: true, cell: (each) => <Status status={each.status} /> },
  { title: "Sampler", className: "muted", cell: (each) => methodOf(each) },
  {
    title: "Trials",
    className: "num",
    phone: true,
    cell: (each) => `${number(endedOf(each))} of ${number(each.trials)}`,
  },
  { title: "Objective", className: "muted", cell: (each) => metricName(each.metric) },
  { title: "Best", className: "num", phone: true, cell: (each) => number(each.best?.value) },
  { title: "Owner", className: "muted", cell: (each) => each.owner },
  { title: "Created", className: "muted nowrap", cell: (each) => <Time at={each.created_at} relative /> },
];

/** Sampler and pruner, such as `tpe + asha`. */
export function methodOf({ sampler, pruner }: SweepView): string {
  return pruner ? `${sampler} + ${pruner}` : sampler;
}

export function endedOf({ states }: SweepView): number {
  return Object.entries(states).reduce((sum, [state, count]) => sum + (OPEN.has(state) ? 0 : count), 0);
}

export function Sweeps() {
  const query = useInfiniteQuery(sweepsQuery);
  return <Listing title="Sweeps" query={query} summary={summary} begin={<HowToBegin />} columns={COLUMNS} />;
}

function summary(items: readonly SweepView[]): string {
  return `${items.filter((each) => each.status === "running").length} of ${items.length} running`;
}

function HowToBegin() {
  const { mayChange } = useSession();
  return (
    <Empty title="No sweeps yet">
      <div className="stack how-to">
        <div>
          A sweep runs a workflow file with different hyperparameters, and finds the best ones.
          {mayChange && " Add `sweep` to a workflow file, and start it:"}
        </div>
        {mayChange && <Copyable text="tunefleet sweep sweep.yaml" />}
        <div>
          <DocsLink page="how-to/sweeps">About sweeps</DocsLink>
        </div>
      </div>
    </Empty>
  );
}
