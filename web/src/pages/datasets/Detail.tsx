/** One dataset: format, first rows with the trained parts marked, row lengths. */
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate } from "@tanstack/react-router";
import { useState } from "react";
import { api, ask } from "../../api/client";
import { lookQuery } from "../../api/queries_data";
import { libraryQuery } from "../../api/queries_models";
import type { ArtifactView, DatasetLook } from "../../api/schema";
import { bytes, number } from "../../lib/format";
import { dataDigest } from "../../lib/models";
import { KINDS } from "../../lib/rows";
import { Confirm, Id, Panel, TaskLink, Time } from "../../parts/bits";
import { useMaySteer, useSession } from "../../parts/session";
import { Answer, Empty } from "../../parts/states";
import { toast } from "../../parts/toasts";
import { Exact } from "./Exact";
import { Faults } from "./Faults";
import { CharacterRows, Histogram, Notes } from "./Mask";

const MOST_MODELS = 5;

export function Detail({ artifact, preview }: { artifact: ArtifactView; preview?: string }) {
  const look = useQuery(lookQuery(artifact.id));
  return (
    <div className="stack">
      <Head artifact={artifact} look={look.data} />
      <Answer query={look} rows={6}>
        {(found) => <Looked artifact={artifact} look={found} preview={preview} />}
      </Answer>
    </div>
  );
}

function Head({ artifact, look }: { artifact: ArtifactView; look?: DatasetLook }) {
  const { mayChange } = useSession();
  const mine = useMaySteer(artifact);
  const [asking, setAsking] = useState(false);
  const client = useQueryClient();
  const navigate = useNavigate();
  const remove = useMutation({
    mutationFn: () =>
      ask(api.DELETE("/api/v1/artifacts/{artifact_id}", { params: { path: { artifact_id: artifact.id } } })),
    onSuccess: async () => {
      toast(`${artifact.name} removed`, "good");
      await client.invalidateQueries({ queryKey: ["datasets"] });
      void navigate({ to: "/datasets", search: {} });
    },
  });
  return (
    <div className="stack tight">
      <div className="row between">
        <h2 className="dataset-name">
          {artifact.name} {look?.kind && <span className="tag">{KINDS[look.kind]}</span>}
        </h2>
        {mayChange && (
          <div className="row tight">
            {mine && (
              <button type="button" onClick={() => setAsking(true)}>
                Remove
              </button>
            )}
            {look?.use && (
              <Link to="/train" search={{ data: artifact.id }} className="button primary">
                Train on this
              </Link>
            )}
          </div>
        )}
      </div>
      <div className="row facts-line muted small">
        {look && <span className="num">{number(look.rows)} rows</span>}
        <span className="num">{bytes(artifact.size_bytes)}</span>
        {look && look.columns.length > 0 && (
          <span>
            columns {look.columns.join(", ")}
            {look.column_count > look.columns.length && ` and ${number(look.column_count - look.columns.length)} more`}
          </span>
        )}
        <span>
          {artifact.owner}, <Time at={artifact.created_at} relative />
        </span>
        {artifact.task_id && (
          <span>
            created by <TaskLink id={artifact.task_id} />
          </span>
        )}
        <Id value={artifact.id} />
        <TrainedOn artifact={artifact} />
      </div>
      {asking && (
        <Confirm
          title={`Remove ${artifact.name}?`}
          action="Remove"
          danger
          onDo={() => remove.mutate()}
          onClose={() => setAsking(false)}
        >
          Existing runs are not affected. New runs cannot use this dataset.
        </Confirm>
      )}
    </div>
  );
}

/** Models that were trained on it. */
function TrainedOn({ artifact }: { artifact: ArtifactView }) {
  const models = useQuery(libraryQuery).data?.items ?? [];
  const trained = models.filter((each) => !each.intermediate && dataDigest(each) === artifact.digest);
  if (trained.length === 0) return null;
  return (
    <span>
      models{" "}
      {trained.slice(0, MOST_MODELS).map((each, at) => (
        <span key={each.artifact.id}>
          {at > 0 && ", "}
          <Link to="/models" search={{ id: each.artifact.id }}>
            {each.name}
          </Link>
        </span>
      ))}
      {trained.length > MOST_MODELS && ` and ${number(trained.length - MOST_MODELS)} more`}
    </span>
  );
}

function Looked({ artifact, look, preview }: { artifact: ArtifactView; look: DatasetLook; preview?: string }) {
  const [exact, setExact] = useState(preview !== undefined);
  const { lengths, use } = look;
  return (
    <>
      <Faults look={look} />
      {look.unseen && <p className="note">{look.unseen}</p>}
      <Notes notes={look.notes} />
      {look.shown.length > 0 && (
        <Panel
          title="Training preview"
          actions={
            use && (
              <div className="segments">
                <button type="button" aria-pressed={!exact} onClick={() => setExact(false)}>
                  Characters
                </button>
                <button type="button" aria-pressed={exact} onClick={() => setExact(true)}>
                  Tokens
                </button>
              </div>
            )
          }
        >
          {exact && use ? (
            <Exact artifact={artifact} use={use} task={preview} />
          ) : (
            <div className="stack">
              <CharacterRows rows={look.shown} />
            </div>
          )}
        </Panel>
      )}
      {lengths && !exact && (
        <Panel title="Row length, characters">
          <Histogram edges={lengths.edges} counts={lengths.counts} unit="characters" />
          <p className="small muted num">
            shortest {number(lengths.shortest)}, median {number(lengths.median)}, p95 {number(lengths.p95)}, longest{" "}
            {number(lengths.longest)}
          </p>
        </Panel>
      )}
      {look.rows === 0 && !look.fault_count && !look.unseen && <Empty title="No rows" />}
    </>
  );
}
