/** Actions on a campaign, for its owner and administrators. */
import { type QueryClient, useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { api, ask } from "../../api/client";
import type { CampaignDetail, CampaignRetry } from "../../api/schema";
import { STEPS } from "../../lib/campaign";
import { Confirm } from "../../parts/bits";
import { useMaySteer } from "../../parts/session";
import { toast } from "../../parts/toasts";

export function refreshCampaign(client: QueryClient): Promise<void> {
  return client.invalidateQueries({ predicate: ({ queryKey }) => String(queryKey[0]).startsWith("campaign") });
}

export function Actions({ campaign }: { campaign: CampaignDetail }) {
  const may = useMaySteer(campaign);
  const client = useQueryClient();
  const [asking, setAsking] = useState(false);
  const path = { params: { path: { campaign: campaign.id } } };
  const move = useMutation({
    mutationFn: (verb: "start" | "pause" | "resume" | "stop") =>
      ask(api.POST(`/api/v1/campaigns/{campaign}/${verb}`, path)),
    onSettled: () => refreshCampaign(client),
  });
  if (!may) return null;
  const { status, cycle } = campaign;
  const button = (verb: "start" | "pause" | "resume", text: string, primary = false) => (
    <button
      type="button"
      className={primary ? "primary" : undefined}
      onClick={() => move.mutate(verb)}
      disabled={move.isPending}
    >
      {text}
    </button>
  );
  return (
    <div className="controls" role="toolbar" aria-label="Controls">
      {status === "active" && button("pause", "Pause")}
      {status === "paused" && button("resume", "Resume", true)}
      {status === "stopped" && button("start", "Start", true)}
      {(status === "held" || (status === "active" && !!cycle && (cycle.tries > 0 || cycle.status === "failed"))) && (
        <Retry campaign={campaign} label="Retry" primary={status === "held"} />
      )}
      {status !== "stopped" && (
        <button type="button" className="danger" onClick={() => setAsking(true)}>
          Stop
        </button>
      )}
      {asking && (
        <Confirm
          title="Stop this campaign?"
          action="Stop campaign"
          danger
          onDo={() => move.mutate("stop")}
          onClose={() => setAsking(false)}
        >
          The current cycle is abandoned and its task is cancelled. The models are kept, and you can start the campaign
          again.
        </Confirm>
      )}
    </div>
  );
}

type Step = NonNullable<CampaignRetry["step"]>;

/** Retry the failed step, or restart from an earlier one. */
export function Retry({
  campaign,
  cycle,
  label,
  primary,
}: {
  campaign: CampaignDetail;
  cycle?: number;
  label: string;
  primary?: boolean;
}) {
  const may = useMaySteer(campaign);
  const client = useQueryClient();
  const [asking, setAsking] = useState(false);
  const [step, setStep] = useState<Step | "">("");
  const retry = useMutation({
    mutationFn: () =>
      ask(
        api.POST("/api/v1/campaigns/{campaign}/retry", {
          params: { path: { campaign: campaign.id } },
          body: { cycle: cycle ?? null, step: step || null },
        }),
      ),
    onSuccess: () => toast("Retrying", "good"),
    onSettled: () => refreshCampaign(client),
  });
  const failed = cycle === undefined ? campaign.cycle : campaign.cycle_list.find((each) => each.number === cycle);
  const reached = failed ? STEPS.slice(0, STEPS.indexOf(failed.step) + 1) : [];
  if (!may) return null;
  return (
    <>
      <button
        type="button"
        className={primary ? "primary" : undefined}
        onClick={() => setAsking(true)}
        disabled={retry.isPending}
      >
        {label}
      </button>
      {asking && (
        <Confirm
          title={cycle === undefined ? "Retry the failed step?" : `Retry cycle ${cycle}?`}
          action="Retry"
          onDo={() => retry.mutate()}
          onClose={() => setAsking(false)}
        >
          <div className="stack">
            <div>The cycle restarts at the failed step, with the latest configuration.</div>
            {reached.length > 0 && (
              <label className="row tight">
                From step
                <select value={step} onChange={(event) => setStep(event.target.value as Step | "")}>
                  <option value="">Failed step</option>
                  {reached.map((each) => (
                    <option key={each} value={each}>
                      {each}
                    </option>
                  ))}
                </select>
              </label>
            )}
            <div className="muted small">From data, upload or submit, a new training run is started and billed.</div>
          </div>
        </Confirm>
      )}
    </>
  );
}
