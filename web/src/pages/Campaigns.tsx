/** All campaigns, newest first: activity of each, and how to start one. */
import { useInfiniteQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { campaignsQuery } from "../api/queries_campaign";
import type { CampaignView } from "../api/schema";
import { doing } from "../lib/campaign";
import { number, percent } from "../lib/format";
import { Bar, Copyable, DocsLink, Status, Time } from "../parts/bits";
import { useNow } from "../parts/clock";
import { type Listed, Listing } from "../parts/Listing";
import { useSession } from "../parts/session";
import { Empty } from "../parts/states";

const COLUMNS: readonly Listed<CampaignView>[] = [
  {
    title: "Campaign",
    phone: true,
    cell: (each) => (
      <>
        <Link to="/campaigns/$name" params={{ name: each.id }} className="strong">
          {each.name}
        </Link>
        <div className="muted small only-phone">
          <Does campaign={each} />
        </div>
      </>
    ),
  },
  { title: "Status", phone: true, cell: (each) => <Status status={each.status} /> },
  { title: "Cycle", className: "num", cell: (each) => (each.cycle ? number(each.cycle.number) : "–") },
  { title: "Activity", className: "muted", cell: (each) => <Does campaign={each} /> },
  {
    title: "Model",
    className: "nowrap",
    phone: true,
    cell: (each) => (each.promoted == null ? "–" : `version ${each.promoted}`),
  },
  { title: "Spent", className: "num", cell: (each) => (each.spent ? number(each.spent) : "–") },
  { title: "Base", className: "muted", cell: (each) => each.base_model },
  { title: "Owner", className: "muted", cell: (each) => each.owner },
  { title: "Created", className: "muted nowrap", cell: (each) => <Time at={each.created_at} relative /> },
];

export function Campaigns() {
  const query = useInfiniteQuery(campaignsQuery);
  return <Listing title="Campaigns" query={query} summary={summary} begin={<HowToBegin />} columns={COLUMNS} />;
}

function summary(items: readonly CampaignView[]): string {
  const count = (status: string) => items.filter((each) => each.status === status).length;
  const held = count("held");
  return `${count("active")} of ${items.length} active${held ? `, ${held} held` : ""}`;
}

function HowToBegin() {
  const { mayChange } = useSession();
  return (
    <Empty title="No campaigns yet">
      <div className="stack how-to">
        <div>
          A campaign trains a model continuously. Each cycle trains on the next chunk of the data, evaluates the result
          on held-out rows, and promotes it only if it is better.
        </div>
        {mayChange && <Copyable text="cd examples/campaign && tunefleet campaign start" />}
        <div>
          <DocsLink page="how-to/run-a-campaign">How to start a campaign</DocsLink>
        </div>
      </div>
    </Empty>
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
