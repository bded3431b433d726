/** Actions on a worker: cordon, drain, standby, remove, and a new task pinned to it. */
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate } from "@tanstack/react-router";
import { useState } from "react";
import { api, ask } from "../../api/client";
import { serverQuery } from "../../api/queries_server";
import type { WorkerView } from "../../api/schema";
import { Confirm } from "../../parts/bits";
import { useSession } from "../../parts/session";

export function Tags({ tags }: { tags: readonly string[] }) {
  if (tags.length === 0) return null;
  return (
    <div className="tags">
      {tags.map((tag) => (
        <span key={tag}>{tag}</span>
      ))}
    </div>
  );
}

export function Verbs({ worker, alone }: { worker: WorkerView; alone?: boolean }) {
  const { mayChange, isAdmin } = useSession();
  const gone = worker.status === "lost" || worker.status === "offline";
  return (
    <div className="row tight">
      {mayChange && !gone && (
        <Link
          to="/new"
          search={{ worker: worker.id }}
          className={alone ? "button primary" : "button quiet"}
          title={`New run pinned to ${worker.id}`}
        >
          New run here
        </Link>
      )}
      {isAdmin && <Orders worker={worker} gone={gone} quiet={alone ? undefined : "quiet"} />}
    </div>
  );
}

function Orders({ worker, gone, quiet }: { worker: WorkerView; gone: boolean; quiet: "quiet" | undefined }) {
  const [asking, setAsking] = useState<"drain" | "forget">();
  const { verb, rest, forget } = useOrders(worker.id);
  const busy = verb.isPending || rest.isPending;
  return (
    <>
      {worker.cordoned || worker.draining ? (
        <button type="button" className={quiet} disabled={busy} onClick={() => verb.mutate("uncordon")}>
          Uncordon
        </button>
      ) : (
        <button
          type="button"
          className={quiet}
          disabled={busy}
          title="Accepts no new runs; active runs finish"
          onClick={() => verb.mutate("cordon")}
        >
          Cordon
        </button>
      )}
      {!gone && !worker.draining && (
        <button type="button" className={quiet} disabled={busy} onClick={() => setAsking("drain")}>
          Drain
        </button>
      )}
      {!gone && <Elastic worker={worker} className={quiet} busy={busy} onAsk={(enabled) => rest.mutate(enabled)} />}
      {gone && (
        <button type="button" className={quiet} disabled={forget.isPending} onClick={() => setAsking("forget")}>
          Remove
        </button>
      )}
      {asking === "drain" && (
        <Confirm
          title={`Drain ${worker.id}?`}
          action="Drain worker"
          onDo={() => verb.mutate("drain")}
          onClose={() => setAsking(undefined)}
        >
          The worker finishes its running tasks and then goes offline. It gets no new tasks until you uncordon it.
        </Confirm>
      )}
      {asking === "forget" && (
        <Confirm
          title={`Remove ${worker.id}?`}
          action="Remove"
          danger
          onDo={() => forget.mutate()}
          onClose={() => setAsking(undefined)}
        >
          Its unfinished tasks are rescheduled. If it reconnects, it joins as a new worker.
        </Confirm>
      )}
    </>
  );
}

/** Elastic scaling controls standby; this overrides it once. Hidden if elastic scaling is off. */
function Elastic({
  worker,
  className,
  busy,
  onAsk,
}: {
  worker: WorkerView;
  className: string | undefined;
  busy: boolean;
  onAsk: (enabled: boolean) => void;
}) {
  const server = useQuery(serverQuery);
  if (!server.data?.elastic_scaling || worker.cordoned || worker.draining) return null;
  return (
    <button
      type="button"
      className={className}
      disabled={busy}
      title={
        worker.elastic_disabled ? "Accept runs again" : "Accepts no new runs until the queue grows or you wake it up"
      }
      onClick={() => onAsk(worker.elastic_disabled === true)}
    >
      {worker.elastic_disabled ? "Wake up" : "Standby"}
    </button>
  );
}

function useOrders(worker_id: string) {
  const client = useQueryClient();
  const navigate = useNavigate();
  const path = { params: { path: { worker_id } } };
  const onSettled = () => client.invalidateQueries({ queryKey: ["workers"] });
  const verb = useMutation({
    mutationFn: (what: "cordon" | "uncordon" | "drain") => ask(api.POST(`/api/v1/workers/{worker_id}/${what}`, path)),
    onSettled,
  });
  const rest = useMutation({
    mutationFn: (enabled: boolean) =>
      ask(api.POST("/api/v1/workers/{worker_id}/elastic", { ...path, body: { enabled } })),
    onSettled,
  });
  const forget = useMutation({
    mutationFn: () => ask(api.DELETE("/api/v1/workers/{worker_id}", path)),
    onSuccess: () => navigate({ to: "/workers" }),
    onSettled,
  });
  return { verb, rest, forget };
}
