/** What a task has left: checkpoints to resume from, artifacts to download. */
import { useMutation, useQuery } from "@tanstack/react-query";
import { Link, useLocation, useNavigate } from "@tanstack/react-router";
import { useState } from "react";
import { api, ask } from "../../api/client";
import { artifactQuery, artifactsQuery, checkpointsQuery } from "../../api/queries";
import type { ArtifactView, TaskAnswer } from "../../api/schema";
import { bytes, number } from "../../lib/format";
import { isFinal } from "../../lib/words";
import { Panel, Time } from "../../parts/bits";
import { useSession } from "../../parts/session";
import { Answer, Empty, Loading } from "../../parts/states";
import { toast } from "../../parts/toasts";

/** Artifacts that a chat can load. */
const TALKS = new Set(["adapter", "model"]);

export function Files({ task }: { task: TaskAnswer }) {
  const checkpoints = useQuery(checkpointsQuery(task.id));
  const artifacts = useQuery(artifactsQuery(task.id));
  const { mayChange } = useSession();
  const navigate = useNavigate();
  const resume = useMutation({
    mutationFn: (from_step: number) =>
      ask(api.POST("/api/v1/tasks/{task_id}/resume", { params: { path: { task_id: task.id } }, body: { from_step } })),
    onSuccess: (made) => {
      toast("It goes on from that checkpoint", "good");
      void navigate({ to: "/tasks/$taskId", params: { taskId: made.id } });
    },
  });
  const mayResume = mayChange && (task.status === "paused" || isFinal(task.status));
  return (
    <div className="stack">
      <Panel title="Checkpoints" flush>
        <Answer query={checkpoints} rows={2}>
          {(found) =>
            found.length === 0 ? (
              <Empty title="No checkpoint yet" />
            ) : (
              <table>
                <thead>
                  <tr>
                    <th className="num">Step</th>
                    <th className="num">Eval loss</th>
                    <th className="num">Size</th>
                    <th className="hide-phone">Saved</th>
                    <th className="num hide-phone">Stood still for</th>
                    <th />
                  </tr>
                </thead>
                <tbody>
                  {[...found].reverse().map((each) => (
                    <tr key={each.step}>
                      <td className="num">{number(each.step)}</td>
                      <td className="num">
                        {number(each.eval_loss)}
                        {each.best && <span className="tag">best</span>}
                      </td>
                      <td className="num">{bytes(each.size_bytes)}</td>
                      <td className="muted hide-phone">
                        <Time at={each.at} />
                      </td>
                      <td className="num muted hide-phone">{((each.stall_s ?? 0) * 1000).toFixed(0)} ms</td>
                      <td className="num">
                        {!each.resumable ? (
                          <span className="muted">not resumable</span>
                        ) : (
                          mayResume && (
                            <button
                              type="button"
                              className="quiet"
                              disabled={resume.isPending}
                              onClick={() => resume.mutate(each.step)}
                            >
                              Resume from here
                            </button>
                          )
                        )}
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
              Chat with it
            </Link>
          )
        }
        flush
      >
        <Answer query={artifacts} rows={2}>
          {({ items }) =>
            items.length === 0 ? (
              <Empty title="Nothing was delivered yet" />
            ) : (
              <ul className="artifacts">
                {items.map((each) => (
                  <Artifact key={each.id} artifact={each} />
                ))}
              </ul>
            )
          }
        </Answer>
      </Panel>
    </div>
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
              All of them as one archive
            </a>
          </td>
          <td className="num muted">{bytes(artifact.data.size_bytes)}</td>
        </tr>
        {artifact.data.files.map((file) => (
          <tr key={file.path}>
            <td>
              <a
                href={`/api/v1/artifacts/${id}/files/${file.path.split("/").map(encodeURIComponent).join("/")}`}
                download
              >
                {file.path}
              </a>
            </td>
            <td className="num muted">{bytes(file.size_bytes)}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
