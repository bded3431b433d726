/** The campaign log, of all cycles or of the chosen one; it follows while scrolled to the end. */
import { useQuery } from "@tanstack/react-query";
import { useEffect, useRef } from "react";
import { campaignLogQuery } from "../../api/queries_campaign";
import type { CampaignDetail, CampaignLine } from "../../api/schema";
import { localTime } from "../../lib/format";
import { Panel } from "../../parts/bits";
import { Answer, Empty } from "../../parts/states";

export function Log({
  reference,
  campaign,
  cycle,
}: {
  reference: string;
  campaign: CampaignDetail;
  cycle: number | undefined;
}) {
  const log = useQuery({
    ...campaignLogQuery(reference, cycle),
    refetchInterval: campaign.status === "active" ? 30_000 : false,
  });
  return (
    <Panel title={<>Log {cycle !== undefined && <span className="muted">of cycle {cycle}</span>}</>} flush>
      <Answer query={log}>
        {({ lines }) => (lines.length === 0 ? <Empty title="No log lines yet" /> : <Lines lines={lines} />)}
      </Answer>
    </Panel>
  );
}

function Lines({ lines }: { lines: readonly CampaignLine[] }) {
  const box = useRef<HTMLElement>(null);
  const follows = useRef(true);
  // biome-ignore lint/correctness/useExhaustiveDependencies: new lines move the end
  useEffect(() => {
    if (follows.current && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [lines]);
  return (
    <section
      ref={box}
      className="log short"
      aria-label="Log"
      tabIndex={0}
      onScroll={({ currentTarget: { scrollTop, scrollHeight, clientHeight } }) => {
        follows.current = scrollTop + clientHeight >= scrollHeight - 20;
      }}
    >
      {lines.map((line) => (
        <div key={line.id} className={line.level}>
          <span className="muted">
            {localTime(line.at)} {line.cycle != null && `cycle ${line.cycle}${line.step ? `, ${line.step}` : ""}: `}
          </span>
          {line.text}
        </div>
      ))}
    </section>
  );
}
