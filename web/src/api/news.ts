/** Which queries an event of a federation or campaign makes stale, and how often they are refetched. */
import type { InfiniteData, QueryClient, QueryKey } from "@tanstack/react-query";
import { amend, mapped, Rereading } from "./cache";
import type {
  CampaignActivity,
  CampaignDetail,
  CampaignView,
  EventView,
  LiveCampaigns,
  PageCampaignView,
} from "./schema";

/** Minimum time between refetches for one federation or campaign. */
const ASK_MS = 1000;
const OF_FEDERATION = ["federation", "federation-rounds", "federation-updates", "federation-versions"];
const OF_CAMPAIGN = ["campaign", "campaign-cycles", "campaign-log", "campaign-models"];

/** The query keys that an event makes stale. Pure. */
export function staleBy(event: EventView): QueryKey[] {
  const { federation, number, campaign, name } = event.data ?? {};
  const of = (whats: readonly string[], ...references: unknown[]) =>
    whats.flatMap((what) => references.map((reference) => [what, reference]));
  if (event.kind.startsWith("federation.")) return [["federations"], ...of(OF_FEDERATION, federation, String(number))];
  if (event.kind.startsWith("campaign.")) return [["campaigns"], ...of(OF_CAMPAIGN, campaign, name)];
  return [];
}

/** Keeps federations and campaigns fresh: refetches immediately, then at most once per interval. */
export class News {
  private readonly stale = new Set<string>();
  private readonly rereading: Rereading;
  /** The newest known log line of each campaign. */
  private readonly lines = new Map<string, number>();
  private timer = 0;
  private askedAt = 0;

  constructor(private readonly client: QueryClient) {
    this.rereading = new Rereading(client);
  }

  events(events: readonly EventView[]): void {
    this.ask(events.flatMap(staleBy));
  }

  /** Show the activity of running cycles; a log that grew is stale. */
  campaigns({ cycles }: LiveCampaigns): void {
    const byId = new Map(cycles.map((each) => [each.campaign_id, each]));
    const patch = <T extends CampaignView>(each: T) => moved(each, byId.get(each.id));
    amend<CampaignDetail>(this.client, ["campaign"], patch);
    amend<InfiniteData<PageCampaignView>>(this.client, ["campaigns"], (old) => {
      const pages = mapped(old.pages, (page) => {
        const items = mapped(page.items, patch);
        return items === page.items ? page : { ...page, items };
      });
      return pages === old.pages ? old : { ...old, pages };
    });
    const grown = cycles.filter(({ campaign_id, line = 0 }) => this.lines.get(campaign_id) !== line);
    for (const { campaign_id, line = 0 } of grown) this.lines.set(campaign_id, line);
    this.ask(grown.flatMap(({ campaign_id, name }) => [campaign_id, name].map((each) => ["campaign-log", each])));
  }

  private ask(keys: readonly QueryKey[]): void {
    for (const key of keys) this.stale.add(nameOf(key));
    if (this.stale.size === 0 || this.timer) return;
    this.timer = window.setTimeout(
      () => {
        this.timer = 0;
        this.askedAt = Date.now();
        const stale = new Set(this.stale);
        this.stale.clear();
        this.rereading.ask(([what, of]) => stale.has(nameOf([what])) || stale.has(nameOf([what, of])));
      },
      Math.max(0, this.askedAt + ASK_MS - Date.now()),
    );
  }
}

function moved<T extends CampaignView>(campaign: T, now: CampaignActivity | undefined): T {
  const { cycle } = campaign;
  // A step change is reported by an event, which also covers the results of the previous step.
  if (!now || cycle?.number !== now.cycle || cycle.step !== now.step) return campaign;
  return { ...campaign, cycle: { ...cycle, activity: now.activity, waiting: now.waiting ?? null } };
}

function nameOf(key: QueryKey): string {
  return JSON.stringify(key);
}
