/** All campaigns, newest first: what each does now, and how to begin one. */
import { useInfiniteQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { campaignsQuery } from "../api/queries_campaign";
import type { CampaignView } from "../api/schema";
import { doing } from "../lib/campaign";
import { number, percent } from "../lib/format";
import { Bar, Copyable, Panel, Status, Time } from "../parts/bits";
import { useNow } from "../parts/clock";
import { useSession } from "../parts/session";
import { Answer, Empty } from "../parts/states";

export function Campaigns() {
  const campaigns = useInfiniteQuery(campaignsQuery);
  const items = campaigns.data?.pages.flatMap((page) => page.items) ?? [];
  const active = items.filter((each) => each.status === "active").length;
  const held = items.filter((each) => each.status === "held").length;
  return (
    <div className="page">
      <div className="row">
        <h1>Campaigns</h1>
        {items.length > 0 && (
          <span className="muted num">
            {active} of {items.length} active{held > 0 && `, ${held} held`}
          </span>
        )}
      </div>
      <Panel flush={items.length > 0}>
        <Answer query={campaigns} rows={6}>
          {() => (items.length === 0 ? <HowToBegin /> : <Table campaigns={items} />)}
        </Answer>
      </Panel>
      {campaigns.hasNextPage && (
        <div>
          <button type="button" onClick={() => void campaigns.fetchNextPage()}>
            Show more
          </button>
        </div>
      )}
    </div>
  );
}

function HowToBegin() {
  const { mayChange } = useSession();
  return (
    <Empty title="There is no campaign yet">
      <div className="stack begin">
        <div>
          A campaign trains on and on by itself: each cycle takes the next chunk of the data, has it trained, measures
          the result on rows that no training has seen, and promotes it only if it is better.
        </div>
        {mayChange && <Copyable text="cd examples/campaign && tunefleet campaign start" />}
        <div className="small">More is in docs/how-to/run-a-campaign.md.</div>
      </div>
    </Empty>
  );
}

function Table({ campaigns }: { campaigns: readonly CampaignView[] }) {
  return (
    <table>
      <thead>
        <tr>
          <th>Campaign</th>
          <th>Status</th>
          <th className="num hide-phone">Cycle</th>
          <th className="hide-phone">Does</th>
          <th>Model</th>
          <th className="num hide-phone">Spent</th>
          <th className="hide-phone">Base</th>
          <th className="hide-phone">By</th>
          <th className="hide-phone">Created</th>
        </tr>
      </thead>
      <tbody>
        {campaigns.map((each) => (
          <tr key={each.id}>
            <td>
              <Link to="/campaigns/$name" params={{ name: each.id }} className="strong">
                {each.name}
              </Link>
              <div className="muted small only-phone">
                <Does campaign={each} />
              </div>
            </td>
            <td>
              <Status status={each.status} />
            </td>
            <td className="num hide-phone">{each.cycle ? number(each.cycle.number) : "–"}</td>
            <td className="muted hide-phone">
              <Does campaign={each} />
            </td>
            <td className="nowrap">{each.promoted == null ? "–" : `version ${each.promoted}`}</td>
            <td className="num hide-phone">{each.spent ? number(each.spent) : "–"}</td>
            <td className="muted hide-phone">{each.base_model}</td>
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

function Does({ campaign }: { campaign: CampaignView }) {
  const now = useNow();
  const activity = campaign.status === "active" ? campaign.cycle?.activity : null;
  return (
    <>
      {doing(campaign, now)}
      {!!activity?.total && <Bar value={percent(activity.done ?? 0, activity.total)} label={activity.what} />}
    </>
  );
}
