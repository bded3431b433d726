/** Actions on a federation, for its owner and administrators. */
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { useState } from "react";
import { api, ask } from "../../api/client";
import type { FederationDetail } from "../../api/schema";
import { Confirm } from "../../parts/bits";
import { useMaySteer } from "../../parts/session";
import { toast } from "../../parts/toasts";

export function Actions({ federation }: { federation: FederationDetail }) {
  const may = useMaySteer(federation);
  const client = useQueryClient();
  const navigate = useNavigate();
  const [asking, setAsking] = useState<"cancel" | "remove" | null>(null);
  const path = { params: { path: { federation_id: federation.id } } };
  const refresh = () =>
    client.invalidateQueries({ predicate: ({ queryKey }) => String(queryKey[0]).startsWith("federation") });
  const move = useMutation({
    mutationFn: (verb: "start" | "pause" | "cancel") =>
      ask(api.POST(`/api/v1/federations/{federation_id}/${verb}`, path)),
    onSettled: refresh,
  });
  const aggregate = useMutation({
    mutationFn: () => ask(api.POST("/api/v1/federations/{federation_id}/aggregate", path)),
    onSuccess: ({ version }) => toast(`Version ${version} published`, "good"),
    onSettled: refresh,
  });
  const remove = useMutation({
    mutationFn: () => ask(api.DELETE("/api/v1/federations/{federation_id}", path)),
    onSuccess: () => {
      toast("Removed");
      void navigate({ to: "/federations" });
      void client.invalidateQueries({ queryKey: ["federations"] });
    },
  });
  if (!may) return null;
  const ended = federation.status === "completed" || federation.status === "cancelled";
  const open = (federation.rounds ?? [])[0];
  const fewest = Math.min(2, Number(federation.spec.min_workers ?? 2));
  const enough = open?.status === "collecting" && (open.uploaded ?? []).length >= fewest;
  return (
    <div className="controls" role="toolbar" aria-label="Controls">
      {federation.status === "running" && (
        <>
          {enough && (
            <button type="button" onClick={() => aggregate.mutate()} disabled={aggregate.isPending}>
              Aggregate now
            </button>
          )}
          <button type="button" onClick={() => move.mutate("pause")} disabled={move.isPending}>
            Pause
          </button>
        </>
      )}
      {(federation.status === "queued" || federation.status === "paused") && (
        <button type="button" className="primary" onClick={() => move.mutate("start")} disabled={move.isPending}>
          {federation.status === "queued" ? "Start" : "Resume"}
        </button>
      )}
      {!ended && (
        <button type="button" className="danger" onClick={() => setAsking("cancel")}>
          End federation
        </button>
      )}
      {ended && (
        <button type="button" className="danger" onClick={() => setAsking("remove")}>
          Remove
        </button>
      )}
      {asking === "cancel" && (
        <Confirm
          title="End this federation?"
          action="End federation"
          danger
          onDo={() => move.mutate("cancel")}
          onClose={() => setAsking(null)}
        >
          It accepts no more updates; this cannot be undone. Its versions are kept and stay available.
        </Confirm>
      )}
      {asking === "remove" && (
        <Confirm
          title="Remove this federation?"
          action="Remove federation"
          danger
          onDo={() => remove.mutate()}
          onClose={() => setAsking(null)}
        >
          Its rounds and versions are deleted and can no longer be fetched.
        </Confirm>
      )}
    </div>
  );
}
