/** What an event of a federation or a campaign makes stale, and how often that is asked for anew. */
import type { InfiniteData, QueryClient, QueryKey } from "@tanstack/react-query";
import type { CampaignActivity, CampaignDetail, CampaignView, EventView, PageCampaignView } from "./schema";

/** What is shown of one is fetched again at most this often, however many upload to it. */
const ASK_MS = 1000;
const OF_FEDERATION = ["federation", "federation-rounds", "federation-updates", "federation-versions"];
const OF_CAMPAIGN = ["campaign", "campaign-cycles", "campaign-log", "campaign-models"];

/** The questions whose answers an event makes stale. Pure. */
export function staleBy(event: EventView): QueryKey[] {
  const { federation, number, campaign, name } = event.data ?? {};
  if (event.kind.startsWith("federation."))
    return [
      ["federations"],
      ...OF_FEDERATION.flatMap((what) => [
        [what, federation],
        [what, String(number)],
      ]),
    ];
  if (event.kind.startsWith("campaign."))
    return [
      ["campaigns"],
      ...OF_CAMPAIGN.flatMap((what) => [
        [what, campaign],
        [what, name],
      ]),
    ];
  return [];
}

/** Asks anew for what is stale: at once, and then once in a while, however much happens. */
export class Stale {
  private readonly keys = new Map<string, QueryKey>();
  private timer = 0;
  private askedAt = 0;

  constructor(private readonly client: QueryClient) {}

  add(keys: readonly QueryKey[]): void {
    for (const key of keys) this.keys.set(JSON.stringify(key), key);
    if (this.keys.size === 0 || this.timer) return;
    this.timer = window.setTimeout(() => this.ask(), Math.max(0, this.askedAt + ASK_MS - Date.now()));
  }

  private ask(): void {
    this.timer = 0;
    this.askedAt = Date.now();
    for (const queryKey of this.keys.values()) void this.client.invalidateQueries({ queryKey });
    this.keys.clear();
  }
}

/** Show what running cycles do now; where there is a new line in a campaign's log, that is stale. */
export function move(client: QueryClient, cycles: readonly CampaignActivity[], lines: Map<string, number>): QueryKey[] {
  const byId = new Map(cycles.map((each) => [each.campaign_id, each]));
  client.setQueriesData<CampaignDetail>({ queryKey: ["campaign"] }, (old) => old && moved(old, byId.get(old.id)));
  client.setQueriesData<InfiniteData<PageCampaignView>>({ queryKey: ["campaigns"] }, (old) =>
    old
      ? {
          ...old,
          pages: old.pages.map((page) => ({
            ...page,
            items: page.items.map((each) => moved(each, byId.get(each.id))),
          })),
        }
      : old,
  );
  return cycles.flatMap(({ campaign_id, name, line = 0 }) => {
    if (lines.get(campaign_id) === line) return [];
    lines.set(campaign_id, line);
    return [
      ["campaign-log", campaign_id],
      ["campaign-log", name],
    ];
  });
}

function moved<T extends CampaignView>(campaign: T, now: CampaignActivity | undefined): T {
  const { cycle } = campaign;
  // Another step than the one that is shown is told by an event, with all that came of the one before.
  if (!now || cycle?.number !== now.cycle || cycle.step !== now.step) return campaign;
  return { ...campaign, cycle: { ...cycle, activity: now.activity, waiting: now.waiting ?? null } };
}
