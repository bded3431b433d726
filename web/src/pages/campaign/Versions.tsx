/** Versions of the campaign's model, newest first; an earlier one can be promoted again. */
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useState } from "react";
import { api, ask } from "../../api/client";
import type { CampaignDetail, ModelVersionView } from "../../api/schema";
import { evaluationTask, measuredOf } from "../../lib/campaign";
import { number } from "../../lib/format";
import { Confirm, Status, Time } from "../../parts/bits";
import { interval } from "../../parts/Plot";
import { useMaySteer } from "../../parts/session";
import { Empty } from "../../parts/states";
import { toast } from "../../parts/toasts";
import { refreshCampaign } from "./Actions";

export function Versions({
  campaign,
  versions,
  chosen,
}: {
  campaign: CampaignDetail;
  versions: readonly ModelVersionView[];
  chosen: number | undefined;
}) {
  if (versions.length === 0)
    return <Empty title="No model yet">A cycle that passes its gate publishes a version.</Empty>;
  return (
    <table>
      <thead>
        <tr>
          <th>Version</th>
          <th className="hide-phone">Stage</th>
          <th className="num">Metric</th>
          <th className="hide-phone">Reason</th>
          <th className="hide-phone">Created</th>
          <th>
            <span className="hidden">Actions</span>
          </th>
        </tr>
      </thead>
      <tbody>
        {versions.map((each) => (
          <tr key={each.version} className={each.cycle === chosen ? "chosen" : undefined}>
            <td>
              <Link
                to="/campaigns/$name"
                params={(old) => ({ name: old.name ?? "" })}
                search={{ cycle: each.cycle }}
                replace
                resetScroll={false}
                className="strong nowrap"
              >
                version {each.version}
              </Link>
              <div className="muted small nowrap">
                cycle {each.cycle}
                <span className="only-phone"> · {each.stage}</span>
              </div>
            </td>
            <td className="hide-phone">
              <Status status={each.stage === "promoted" ? "completed" : "skipped"} note={each.stage} />
            </td>
            <td className="num">
              <Value version={each} />
            </td>
            <td className="small muted hide-phone">{each.reason}</td>
            <td className="muted nowrap hide-phone">
              <Time at={each.created_at} relative />
            </td>
            <td className="num">
              {each.stage !== "promoted" && <Rollback campaign={campaign} version={each.version} />}
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function Value({ version }: { version: ModelVersionView }) {
  const { chosen } = measuredOf(version.evaluation, evaluationTask(version));
  return (
    <>
      {number(chosen?.value)}
      {chosen?.low != null && chosen.high != null && (
        <div className="muted small">{interval(chosen.low, chosen.high)}</div>
      )}
    </>
  );
}

function Rollback({ campaign, version }: { campaign: CampaignDetail; version: number }) {
  const may = useMaySteer(campaign);
  const client = useQueryClient();
  const [asking, setAsking] = useState(false);
  const back = useMutation({
    mutationFn: () =>
      ask(
        api.POST("/api/v1/campaigns/{campaign}/rollback", {
          params: { path: { campaign: campaign.id } },
          body: { version },
        }),
      ),
    onSuccess: () => toast(`Version ${version} promoted`, "good"),
    onSettled: () => refreshCampaign(client),
  });
  if (!may) return null;
  return (
    <>
      <button type="button" onClick={() => setAsking(true)} disabled={back.isPending}>
        Promote
      </button>
      {asking && (
        <Confirm
          title={`Promote version ${version}?`}
          action="Promote"
          onDo={() => back.mutate()}
          onClose={() => setAsking(false)}
        >
          The next cycle starts from this version and is compared with it. The currently promoted version is archived.
        </Confirm>
      )}
    </>
  );
}
