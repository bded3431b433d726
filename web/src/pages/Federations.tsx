/** All federations, newest first: where each stands, and how to begin one. */
import { useInfiniteQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { federationsQuery } from "../api/queries_federated";
import type { FederationView } from "../api/schema";
import { number } from "../lib/format";
import { Copyable, Panel, Status, Time } from "../parts/bits";
import { useSession } from "../parts/session";
import { Answer, Empty } from "../parts/states";

export function Federations() {
  const federations = useInfiniteQuery(federationsQuery);
  const items = federations.data?.pages.flatMap((page) => page.items) ?? [];
  return (
    <div className="page">
      <div className="row">
        <h1>Federations</h1>
        {items.length > 0 && <Running items={items} />}
      </div>
      <Panel flush={items.length > 0}>
        <Answer query={federations} rows={6}>
          {() => (items.length === 0 ? <HowToBegin /> : <Table federations={items} />)}
        </Answer>
      </Panel>
      {federations.hasNextPage && (
        <div>
          <button type="button" onClick={() => void federations.fetchNextPage()}>
            Show more
          </button>
        </div>
      )}
    </div>
  );
}

function Running({ items }: { items: readonly FederationView[] }) {
  const running = items.filter((each) => each.status === "running").length;
  return (
    <span className="muted num">
      {running} of {items.length} run
    </span>
  );
}

function HowToBegin() {
  const { mayChange } = useSession();
  return (
    <Empty title="There is no federation yet">
      <div className="stack begin">
        <div>
          Several machines train one adapter, each on its own rows; the server averages what they upload.{" "}
          {mayChange && (
            <>
              <Link to="/new" search={{ template: "federated" }}>
                Begin with the example
              </Link>
              , a training that is split between your workers, or make one that workers of any kind join:
            </>
          )}
        </div>
        {mayChange && <Copyable text="tunefleet federation create --name support-bot --min-workers 2" />}
        <div className="small">More is in docs/how-to/federate-a-training.md.</div>
      </div>
    </Empty>
  );
}

function Table({ federations }: { federations: readonly FederationView[] }) {
  return (
    <table>
      <thead>
        <tr>
          <th>Federation</th>
          <th>Status</th>
          <th className="hide-phone">Strategy</th>
          <th className="num">Version</th>
          <th className="num hide-phone">Round</th>
          <th className="num hide-phone">Workers</th>
          <th className="hide-phone">Now</th>
          <th className="hide-phone">By</th>
          <th className="hide-phone">Created</th>
        </tr>
      </thead>
      <tbody>
        {federations.map((each) => (
          <tr key={each.id}>
            <td>
              <Link to="/federations/$name" params={{ name: each.id }} className="strong">
                {each.name}
              </Link>
              <div className="muted small only-phone">{each.why}</div>
            </td>
            <td>
              <Status status={each.status} />
            </td>
            <td className="muted hide-phone">{each.strategy}</td>
            <td className="num">{each.version ? number(each.version) : "–"}</td>
            <td className="num hide-phone">{number(each.round)}</td>
            <td className="num hide-phone">{number(each.members)}</td>
            <td className="muted hide-phone">{each.why}</td>
            <td className="muted hide-phone">{each.owner}</td>
            <td className="muted nowrap hide-phone">
              <Time at={each.created_at} relative />
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
