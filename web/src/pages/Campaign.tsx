/** One campaign: current activity, cycles, evaluation of its versions, lineage. */
import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { useParams, useSearch } from "@tanstack/react-router";
import { campaignQuery, modelsQuery, olderCyclesQuery } from "../api/queries_campaign";
import type { CampaignDetail } from "../api/schema";
import { number } from "../lib/format";
import { Id, Panel, Status, Time } from "../parts/bits";
import { Scrolls } from "../parts/Lanes";
import { Answer, Empty } from "../parts/states";
import { Actions } from "./campaign/Actions";
import { Cycle } from "./campaign/Cycle";
import { Cycles } from "./campaign/Cycles";
import { Evaluation } from "./campaign/Evaluation";
import { Lineage } from "./campaign/Lineage";
import { Log } from "./campaign/Log";
import { Now } from "./campaign/Now";
import { Spend } from "./campaign/Spend";
import { Versions } from "./campaign/Versions";

export function Campaign() {
  const { name } = useParams({ from: "/campaigns/$name" });
  const campaign = useQuery(campaignQuery(name));
  return (
    <div className="page">
      {!campaign.data && <h1>{name}</h1>}
      <Answer query={campaign} rows={6}>
        {(found) => <Shown campaign={found} reference={name} />}
      </Answer>
    </div>
  );
}

function Shown({ campaign, reference }: { campaign: CampaignDetail; reference: string }) {
  const search = useSearch({ from: "/campaigns/$name" });
  const models = useQuery(modelsQuery(campaign.name, campaign.owner));
  const newest = campaign.cycle_list;
  const first = Math.min(...newest.map((each) => each.number), campaign.cycles);
  const wanted = search.cycle !== undefined && search.cycle < first;
  const older = useInfiniteQuery({ ...olderCyclesQuery(reference, first), enabled: wanted });
  const cycles = [...newest, ...(older.data?.pages ?? []).flatMap((page) => page.items)];
  const begun = cycles.find((each) => each.steps.some(({ name, status }) => name === "data" && status === "done"));
  const chosen = cycles.find((each) => each.number === search.cycle) ?? (wanted ? undefined : (begun ?? cycles[0]));
  const more = older.data ? older.hasNextPage : first > 0;
  return (
    <>
      <Head campaign={campaign} />
      <Now campaign={campaign} />
      <Panel
        title={
          <>
            Cycles <span className="muted num">{number(campaign.cycles)}</span>
          </>
        }
        actions={
          more && (
            <button type="button" onClick={() => void (older.data ? older.fetchNextPage() : older.refetch())}>
              Show older
            </button>
          )
        }
      >
        {cycles.length === 0 ? (
          <Empty title="No cycles yet">The first cycle starts when the campaign is active.</Empty>
        ) : (
          <Cycles cycles={cycles} chosen={chosen?.number} live={campaign.status === "active"} />
        )}
      </Panel>
      {chosen && <Lineage cycle={chosen} models={models.data?.items ?? []} />}
      <div className="columns">
        <div className="stack">
          <Answer query={models}>
            {({ items }) => (
              <>
                <Evaluation versions={items} chosen={chosen?.number} />
                <Panel title="Versions" flush>
                  <Scrolls label="Versions">
                    <Versions campaign={campaign} versions={items} chosen={chosen?.number} />
                  </Scrolls>
                </Panel>
              </>
            )}
          </Answer>
        </div>
        <div className="stack">
          {chosen && <Cycle campaign={campaign} cycle={chosen} />}
          <Spend campaign={campaign} cycles={cycles} />
        </div>
      </div>
      <Log reference={reference} campaign={campaign} cycle={search.cycle} />
      <Panel title="Configuration">
        <details>
          <summary>As submitted</summary>
          <pre>{JSON.stringify(campaign.spec, null, 2)}</pre>
        </details>
      </Panel>
    </>
  );
}

function Head({ campaign }: { campaign: CampaignDetail }) {
  return (
    <div className="task-head">
      <div className="row between">
        <div className="row">
          <h1>{campaign.name}</h1>
          <Status status={campaign.status} />
          <Id value={campaign.id} />
        </div>
        <Actions campaign={campaign} />
      </div>
      <div className="row muted small facts-line">
        {campaign.provider && <span>provider {campaign.provider}</span>}
        <span>base model {campaign.base_model}</span>
        <span className="num">
          {campaign.promoted == null ? "no promoted version" : `version ${campaign.promoted} promoted`}
        </span>
        {campaign.failures > 0 && <span className="num">{number(campaign.failures)} consecutive failures</span>}
        <span>owner {campaign.owner}</span>
        <span>
          created <Time at={campaign.created_at} relative />
        </span>
      </div>
      {campaign.status !== "active" && campaign.reason && (
        <div className={campaign.status === "held" ? "fault" : "note"}>{campaign.reason}</div>
      )}
    </div>
  );
}
