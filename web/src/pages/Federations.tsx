/** All federations, newest first: state of each, and how to start one. */
import { useInfiniteQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { federationsQuery } from "../api/queries_federated";
import type { FederationView } from "../api/schema";
import { number } from "../lib/format";
import { Copyable, DocsLink, Status, Time } from "../parts/bits";
import { type Listed, Listing } from "../parts/Listing";
import { useSession } from "../parts/session";
import { Empty } from "../parts/states";

const COLUMNS: readonly Listed<FederationView>[] = [
  {
    title: "Federation",
    phone: true,
    cell: (each) => (
      <>
        <Link to="/federations/$name" params={{ name: each.id }} className="strong">
          {each.name}
        </Link>
        <div className="muted small only-phone">{each.why}</div>
      </>
    ),
  },
  { title: "Status", phone: true, cell: (each) => <Status status={each.status} /> },
  { title: "Strategy", className: "muted", cell: (each) => each.strategy },
  { title: "Version", className: "num", phone: true, cell: (each) => (each.version ? number(each.version) : "–") },
  { title: "Round", className: "num", cell: (each) => number(each.round) },
  { title: "Workers", className: "num", cell: (each) => number(each.members) },
  { title: "Activity", className: "muted", cell: (each) => each.why },
  { title: "Owner", className: "muted", cell: (each) => each.owner },
  { title: "Created", className: "muted nowrap", cell: (each) => <Time at={each.created_at} relative /> },
];

export function Federations() {
  const query = useInfiniteQuery(federationsQuery);
  return <Listing title="Federations" query={query} summary={summary} begin={<HowToBegin />} columns={COLUMNS} />;
}

function summary(items: readonly FederationView[]): string {
  return `${items.filter((each) => each.status === "running").length} of ${items.length} running`;
}

function HowToBegin() {
  const { mayChange } = useSession();
  return (
    <Empty title="No federations yet">
      <div className="stack how-to">
        <div>
          Several machines train one adapter, each on its own data. The server aggregates their updates.{" "}
          {mayChange && (
            <>
              <Link to="/new" search={{ template: "federated" }}>
                Start with the example
              </Link>
              , which splits one run across your workers, or create a federation that any worker can join:
            </>
          )}
        </div>
        {mayChange && <Copyable text="tunefleet federation create --name support-bot --min-workers 2" />}
        <div>
          <DocsLink page="how-to/federated-lora">About federations</DocsLink>
        </div>
      </div>
    </Empty>
  );
}
