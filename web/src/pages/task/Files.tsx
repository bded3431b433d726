/** Results of a task: checkpoints to resume from, artifacts to download. */

import { useMutation, useQuery } from "@tanstack/react-query";
import { Link, useLocation, useNavigate } from "@tanstack/react-router";
import { useEffect, useState } from "react";
import { api, ask } from "../../api/client";
import { followPoints } from "../../api/live";
import { artifactQuery, artifactsQuery, checkpointsQuery, metricsQuery } from "../../api/queries";
import type { ArtifactView, TaskAnswer } from "../../api/schema";
import { bytes, number } from "../../lib/format";
import { valueAt } from "../../lib/series";
import { isFinal, isTraining } from "../../lib/words";
import { Panel, Time } from "../../parts/bits";
import { FileRow } from "../../parts/FileRow";
import { useMaySteer } from "../../parts/session";
import { Answer, Cut, Empty, Loading } from "../../parts/states";
import { toast } from "../../parts/toasts";

/** Artifacts that a chat can load. */
const TALKS = new Set(["adapter", "model"]);

export function Files({ task }: { task: TaskAnswer }) {
  const checkpoints = useQuery(checkpointsQuery(task.id));
  const artifacts = useQuery(artifactsQuery(task.id));
  const mine = useMaySteer(task);
  const training = isTraining(task.kind);
  useEffect(() => followPoints(training ? [task.id] : []), [task.id, training]);
  const points = useQuery({ ...metricsQuery(task.id), enabled: training }).data?.points ?? [];
  const navigate = useNavigate();
  const resume = useMutation({
    mutationFn: (from_step: number) =>
      ask(api.POST("/api/v1/tasks/{task_id}/resume", { params: { path: { task_id: task.id } }, body: { from_step } })),
    onSuccess: (made) => {
      toast("Resumed from that checkpoint", "good");
      void navigate({ to: "/tasks/$taskId", params: { taskId: made.id } });
    },
  });
  const mayResume = mine && (task.status === "paused" || isFinal(task.status));
  /** Nothing is left to train after this step. */
  const end = (task.status === "completed" && task.progress?.max_steps) || Number.POSITIVE_INFINITY;
  return (
    <div className="stack">
      <Panel title="Checkpoints" flush>
        <Answer query={checkpoints} rows={2}>
          {(found) =>
            found.length === 0 ? (
              <Empty title="No checkpoints yet" />
            ) : (
              <table>
                <thead>
                  <tr>
                    <th className="num">Step</th>
                    {training && <th className="num">Loss</th>}
                    <th className="num">Eval loss</th>
                    <th className="num hide-phone">Size</th>
                    <th className="hide-phone">Saved</th>
                    <th className="num hide-phone">Save time</th>
                    <th>
                      <span className="hidden">Actions</span>
                    </th>
                  </tr>
                </thead>
                <tbody>
                  {[...found].reverse().map((each) => (
                    <tr key={each.step}>
                      <td className="num">{number(each.step)}</td>
                      {training && (
                        <td className="num" title="Last value logged before the checkpoint">
                          {number(valueAt(points, "loss", each.step))}
                        </td>
                      )}
                      <td className="num">
                        {number(each.eval_loss)}
                        {each.best && <span className="tag">best</span>}
                      </td>
                      <td className="num hide-phone">{bytes(each.size_bytes)}</td>
                      <td className="muted hide-phone">
                        <Time at={each.at} />
                      </td>
                      <td className="num muted hide-phone">{((each.stall_s ?? 0) * 1000).toFixed(0)}ms</td>
                      <td>
                        <span className="row tight end">
                          <Held artifact={artifacts.data?.items.find(({ name }) => name === each.artifact)} />
                          {!each.resumable ? (
                            <span className="muted">not resumable</span>
                          ) : (
                            mayResume && (
                              <button
                                type="button"
                                className="quiet"
                                disabled={resume.isPending || each.step >= end}
                                title={
                                  each.step >= end
                                    ? "The run is complete at this step; clone it to train longer"
                                    : undefined
                                }
                                onClick={() => resume.mutate(each.step)}
                              >
                                Resume from here
                              </button>
                            )
                          )}
                        </span>
                      </td>
                    </tr>
                  ))}
                </tbody>
              </table>
            )
          }
        </Answer>
      </Panel>
      <Panel
        title="Artifacts"
        actions={
          artifacts.data?.items.some((each) => TALKS.has(each.kind)) && (
            <Link to="/playground" search={{ task: task.id }}>
              Chat
            </Link>
          )
        }
        flush
      >
        <Answer query={artifacts} rows={2}>
          {({ items, more }) =>
            items.length === 0 ? (
              <Empty title="No artifacts yet" />
            ) : (
              <>
                <ul className="artifacts">
                  {items.map((each) => (
                    <Artifact key={each.id} artifact={each} />
                  ))}
                </ul>
                <Cut more={more}>The API lists all artifacts.</Cut>
              </>
            )
          }
        </Answer>
      </Panel>
    </div>
  );
}

/** Download of a checkpoint, if its files are on the server: older checkpoints are pruned. */
function Held({ artifact }: { artifact?: ArtifactView }) {
  if (!artifact) return null;
  return (
    <a href={`/api/v1/artifacts/${artifact.id}/archive`} download title={`Download ${artifact.name} as .tar`}>
      Download
    </a>
  );
}

function Artifact({ artifact }: { artifact: ArtifactView }) {
  const wanted = useLocation().hash === artifact.id;
  const [open, setOpen] = useState(wanted);
  return (
    <li id={artifact.id}>
      <details open={open} onToggle={(event) => setOpen(event.currentTarget.open)}>
        <summary>
          <strong>{artifact.name}</strong>
          <span className="muted"> {artifact.kind}</span>
          <span className="muted num aside">
            {artifact.file_count} {artifact.file_count === 1 ? "file" : "files"}, {bytes(artifact.size_bytes)}
          </span>
        </summary>
        {open && <ArtifactFiles id={artifact.id} />}
      </details>
    </li>
  );
}

function ArtifactFiles({ id }: { id: string }) {
  const artifact = useQuery(artifactQuery(id));
  if (!artifact.data) return <Loading rows={2} />;
  return (
    <table>
      <tbody>
        <tr>
          <td>
            <a href={`/api/v1/artifacts/${id}/archive`} download>
              Download .tar
            </a>
          </td>
          <td className="num muted">{bytes(artifact.data.size_bytes)}</td>
        </tr>
        {artifact.data.files.map((file) => (
          <FileRow key={file.path} id={id} file={file} />
        ))}
      </tbody>
    </table>
  );
}
