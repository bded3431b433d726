/** Storage usage of the server, and pruning. */
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { api, ask } from "../../api/client";
import { storageQuery } from "../../api/queries_server";
import type { PruneReply, StorageUse, StorageView } from "../../api/schema";
import { bytes, number, percent } from "../../lib/format";
import { Confirm, Panel, Time } from "../../parts/bits";
import { useSession } from "../../parts/session";
import { Answer } from "../../parts/states";
import { toast } from "../../parts/toasts";

const WORDS: Record<StorageUse["kind"], readonly [string, string]> = {
  results: ["Results", "adapters, models and files from runs"],
  checkpoints: ["Checkpoints", "for paused and interrupted runs"],
  data: ["Uploaded data", "datasets and models of users and campaigns"],
  federations: ["Federations", "versions, updates, chunks"],
  database: ["Database", "runs, metrics, logs, events"],
  arriving: ["Uploads", "uploads in progress"],
  working: ["Temporary", "files the server is unpacking"],
  unused: ["Unused", "unreferenced files; removed automatically within hours, or when you prune"],
};

export function Storage() {
  const storage = useQuery(storageQuery);
  const { isAdmin } = useSession();
  return (
    <Panel
      title="Storage"
      actions={
        storage.data && (
          <span className="muted small">
            updated <Time at={storage.data.counted_at} relative />
          </span>
        )
      }
    >
      <div className="stack">
        <Answer query={storage} rows={5}>
          {(view) => <Shown view={view} />}
        </Answer>
        {isAdmin && <Prune />}
      </div>
    </Panel>
  );
}

function Shown({ view }: { view: StorageView }) {
  const uses = view.uses.filter((use) => use.size_bytes > 0);
  const shown = [...uses].sort((a, b) => b.size_bytes - a.size_bytes);
  return (
    <>
      <div className="row between tight num">
        <strong>{bytes(view.total_bytes)}</strong>
        <span className="muted small">
          {bytes(view.disk_free_bytes)} of {bytes(view.disk_total_bytes)} disk space free
        </span>
      </div>
      <div className="shares" role="img" aria-label="Storage share by kind">
        {shown.map((use, at) => (
          <i
            key={use.kind}
            style={{ width: `${percent(use.size_bytes, view.total_bytes)}%`, opacity: tint(at) }}
            title={`${WORDS[use.kind][0]}: ${bytes(use.size_bytes)}`}
          />
        ))}
      </div>
      <table className="uses" aria-label="Storage by kind">
        <tbody>
          {shown.map((use, at) => (
            <tr key={use.kind} title={WORDS[use.kind][1]}>
              <td>
                <i className="swatch" style={{ background: "var(--accent)", opacity: tint(at) }} />
                {WORDS[use.kind][0]}
                <div className="muted small">
                  {use.kind === "database"
                    ? `including ${bytes(view.log_bytes)} of logs; ${number(view.journal_records)} metrics and events`
                    : WORDS[use.kind][1]}
                </div>
              </td>
              <td className="num muted small hide-phone">
                {number(use.files)} {use.files === 1 ? "file" : "files"}
              </td>
              <td className="num">{bytes(use.size_bytes)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </>
  );
}

function tint(at: number): number {
  return Math.max(0.18, 1 - at * 0.2);
}

const AGES = [
  [7, "7 days"],
  [30, "30 days"],
  [90, "90 days"],
] as const;
const DAY_S = 86_400;

function Prune() {
  const client = useQueryClient();
  const [days, setDays] = useState<number>(30);
  const [found, setFound] = useState<PruneReply>();
  const prune = useMutation({
    mutationFn: (dry_run: boolean) => ask(api.POST("/api/v1/prune", { body: { older_than_s: days * DAY_S, dry_run } })),
    onSuccess: (reply) => {
      if (reply.dry_run) return setFound(reply);
      setFound(undefined);
      toast(`Removed ${amount(reply)}; ${bytes(reply.freed_bytes)} freed`, "good");
      for (const what of ["storage", "tasks", "overview"]) void client.invalidateQueries({ queryKey: [what] });
    },
  });
  const age = AGES.find(([each]) => each === days)?.[1];
  return (
    <div className="prune">
      <div className="row tight">
        <label className="row tight small">
          Remove runs that ended more than
          <select value={days} onChange={(event) => setDays(Number(event.target.value))}>
            {AGES.map(([each, words]) => (
              <option key={each} value={each}>
                {words}
              </option>
            ))}
          </select>
          ago
        </label>
        <button type="button" disabled={prune.isPending} onClick={() => prune.mutate(true)}>
          Preview
        </button>
      </div>
      {found && (
        <Confirm
          title={`Remove data older than ${age}?`}
          action="Remove"
          danger
          onDo={() => prune.mutate(false)}
          onClose={() => setFound(undefined)}
        >
          This removes {amount(found)}, with metrics and logs, and files that are no longer referenced. Files that other
          runs need are kept.
        </Confirm>
      )}
    </div>
  );
}

function amount(reply: PruneReply): string {
  const count = (much: number, what: string) => `${number(much)} ${what}${much === 1 ? "" : "s"}`;
  return `${count(reply.workflows?.length ?? 0, "workflow")} and ${count(reply.artifacts?.length ?? 0, "artifact")}`;
}
