/** One model: actions, facts, and its lineage: data and base → run → model → what was made from it. */

import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import type { ReactNode } from "react";
import { artifactQuery } from "../../api/queries";
import { bytes, number } from "../../lib/format";
import {
  dataDigest,
  FORM_NAMES,
  loadingOfName,
  type Model,
  madeFrom,
  madeOf,
  type NamedBase,
  SOURCE,
  shortName,
} from "../../lib/models";
import { changeOf } from "../../lib/result";
import { Id, Panel, TaskLink, Time } from "../../parts/bits";
import { FileRow } from "../../parts/FileRow";
import { useSession } from "../../parts/session";
import { useServe, useStart } from "../playground/start";
import { DeleteModel, ModelActions } from "./Actions";

/** More children than this are found by a search in the list. */
const MOST_LINKS = 12;

export function Detail({ model, all }: { model: Model; all: readonly Model[] }) {
  const { artifact, form, name } = model;
  return (
    <Panel
      title={
        <>
          {name} <span className="tag">{FORM_NAMES[form]}</span>
        </>
      }
    >
      <div className="stack">
        <div className="row tight">
          <ModelActions model={model} />
          <DeleteModel model={model} />
        </div>
        <Lineage model={model} all={all} />
        <dl className="facts">
          <Scores model={model} />
          <dt>Size</dt>
          <dd className="num">
            {bytes(artifact.size_bytes)} in {artifact.file_count === 1 ? "1 file" : `${artifact.file_count} files`}
          </dd>
          <dt>Created</dt>
          <dd>
            <Time at={artifact.created_at} relative /> by {artifact.owner}
          </dd>
          <dt>Artifact</dt>
          <dd>
            {artifact.name} <Id value={artifact.id} />
          </dd>
        </dl>
        <Files id={artifact.id} />
      </div>
    </Panel>
  );
}

/** A base model that workers have or fetch by its name. */
export function NamedDetail({ base }: { base: NamedBase }) {
  const { identifier, models } = base;
  const { mayChange } = useSession();
  const start = useStart();
  const serve = useServe();
  return (
    <Panel
      title={
        <>
          {shortName(identifier)} <span className="tag">{FORM_NAMES.base}</span>
        </>
      }
    >
      <div className="stack">
        {mayChange && (
          <div className="row tight">
            <button
              type="button"
              className="primary"
              disabled={start.isPending}
              onClick={() => start.mutate({ loading: loadingOfName(identifier) })}
            >
              Chat
            </button>
            <button type="button" disabled={serve.isPending} onClick={() => serve.mutate(loadingOfName(identifier))}>
              Serve
            </button>
            <Link to="/train" search={{ model: identifier }} className="button">
              Fine-tune
            </Link>
          </div>
        )}
        <p className="muted">{identifier}</p>
        {models.length > 0 && (
          <ol className="lineage" aria-label="Lineage">
            <li>
              <Box title={FORM_NAMES.base} chosen>
                <strong>{shortName(identifier)}</strong>
              </Box>
            </li>
            <li>
              {models.slice(0, MOST_LINKS).map((each) => (
                <Box key={each.artifact.id} title={FORM_NAMES[each.form]}>
                  <ModelLink model={each} />
                </Box>
              ))}
            </li>
          </ol>
        )}
      </div>
    </Panel>
  );
}

function Scores({ model }: { model: Model }) {
  const { eval_loss, exact_match } = model.artifact.origin ?? {};
  const loss = changeOf(eval_loss?.[0], eval_loss?.[1]);
  const match = changeOf(exact_match?.[0], exact_match?.[1]);
  return (
    <>
      {loss && (
        <>
          <dt>Eval loss</dt>
          <dd className="num">
            {number(loss.before)} → {number(loss.after)}
          </dd>
        </>
      )}
      {match && (
        <>
          <dt>Exact match</dt>
          <dd className="num">
            {(100 * match.before).toFixed(1)}% → {(100 * match.after).toFixed(1)}%
          </dd>
        </>
      )}
    </>
  );
}

function Lineage({ model, all }: { model: Model; all: readonly Model[] }) {
  const { artifact, base, form } = model;
  const { origin, task_id } = artifact;
  const digest = dataDigest(model);
  const data = useQuery({ ...artifactQuery(digest ?? ""), enabled: digest !== undefined, retry: false });
  const children = madeFrom(model, all);
  const parents = madeOf(model, all);
  const uploadedBase = all.find((each) => each.form === "base" && each.artifact.digest === origin?.inputs?.[SOURCE]);
  if (!origin && children.length === 0) return null;
  return (
    <ol className="lineage" aria-label="Lineage">
      {origin && (
        <li>
          {origin.data && (
            <Box title="Data">
              {data.data ? (
                <Link to="/datasets" search={{ id: data.data.id }} className="strong">
                  {data.data.name}
                </Link>
              ) : (
                shortName(origin.data)
              )}
            </Box>
          )}
          {parents
            .filter((each) => each !== uploadedBase)
            .map((each) => (
              <Box key={each.artifact.id} title={FORM_NAMES[each.form]}>
                <ModelLink model={each} />
              </Box>
            ))}
          {base && (
            <Box title="Base">
              {uploadedBase ? (
                <ModelLink model={uploadedBase} />
              ) : base.startsWith("./") ? (
                shortName(base)
              ) : (
                <Link to="/models" search={(old) => ({ ...old, id: base })} from="/models" className="strong">
                  {shortName(base)}
                </Link>
              )}
            </Box>
          )}
        </li>
      )}
      {origin && task_id && (
        <li>
          <Box title={origin.task_kind === "merge" ? "Merge" : "Run"}>
            <TaskLink id={task_id} name={origin.task_name} />
            <span className="muted small">{origin.task_kind}</span>
          </Box>
        </li>
      )}
      <li>
        <Box title={FORM_NAMES[form]} chosen>
          <strong>{model.name}</strong>
        </Box>
      </li>
      {children.length > 0 && (
        <li>
          {children.slice(0, MOST_LINKS).map((each) => (
            <Box key={each.artifact.id} title={FORM_NAMES[each.form]}>
              <ModelLink model={each} />
            </Box>
          ))}
        </li>
      )}
    </ol>
  );
}

function Box({ title, chosen, children }: { title: string; chosen?: boolean; children: ReactNode }) {
  return (
    <div className={chosen ? "box chosen" : "box"}>
      <span className="muted small">{title}</span>
      {children}
    </div>
  );
}

function ModelLink({ model }: { model: Model }) {
  return (
    <Link to="/models" search={(old) => ({ ...old, id: model.artifact.id })} from="/models" className="strong">
      {model.name}
    </Link>
  );
}

function Files({ id }: { id: string }) {
  const artifact = useQuery(artifactQuery(id));
  return (
    <details>
      <summary>Files</summary>
      <table>
        <tbody>
          {artifact.data?.files.map((file) => (
            <FileRow key={file.path} id={id} file={file} />
          ))}
        </tbody>
      </table>
    </details>
  );
}
