/** The model library: adapters, full and merged models, GGUF files and uploaded base models, with their lineage. */
import { useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { libraryQuery } from "../api/queries_models";
import { bytes, number } from "../lib/format";
import { FORM_NAMES, FORMS, type Form, type Model, type NamedBase, namedBases, shortName } from "../lib/models";
import { changeOf } from "../lib/result";
import { Panel, Time } from "../parts/bits";
import { useSession } from "../parts/session";
import { Answer, Cut, Empty } from "../parts/states";
import { useTitle } from "../parts/title";
import "../styles/models.css";
import { Detail, NamedDetail } from "./models/Detail";
import { Endpoints } from "./models/Endpoints";
import { ModelUpload } from "./models/Upload";

export function Models() {
  useTitle("Models");
  const { mayChange } = useSession();
  const library = useQuery(libraryQuery);
  const navigate = useNavigate({ from: "/models" });
  return (
    <div className="page">
      <h1>Models</h1>
      {mayChange && <ModelUpload onDone={(made) => void navigate({ search: { id: made.id } })} />}
      <Endpoints />
      <Answer query={library} rows={6}>
        {({ items, more }) => <Library items={items} more={more} />}
      </Answer>
    </div>
  );
}

function Library({ items, more }: { items: readonly Model[]; more: boolean }) {
  const { id, form, q = "", intermediate } = useSearch({ from: "/models" });
  const navigate = useNavigate({ from: "/models" });
  const hidden = items.filter((each) => each.intermediate).length;
  const kept = items.filter((each) => intermediate || !each.intermediate);
  const words = q.toLowerCase().split(/\s+/);
  const found = kept.filter(({ name, base, artifact }) =>
    words.every((word) => `${name} ${base} ${artifact.origin?.data} ${artifact.owner}`.toLowerCase().includes(word)),
  );
  const named = namedBases(items);
  const foundNamed = named.filter(({ identifier }) => words.every((word) => identifier.toLowerCase().includes(word)));
  const shown = found.filter((each) => !form || each.form === form);
  const shownNamed = !form || form === "base" ? foundNamed : [];
  const chosen = items.find(({ artifact }) => artifact.id === id);
  const chosenNamed = named.find(({ identifier }) => identifier === id);
  const count = (wanted: Form) =>
    found.filter((each) => each.form === wanted).length + (wanted === "base" ? foundNamed.length : 0);
  return (
    <>
      <div className="row">
        <input
          type="search"
          aria-label="Search"
          placeholder="Search"
          value={q}
          onChange={(event) =>
            void navigate({ search: (old) => ({ ...old, q: event.target.value || undefined }), replace: true })
          }
        />
        <div className="row tight" role="group" aria-label="Type">
          <FormButton label="All" count={found.length + foundNamed.length} form={undefined} chosen={form} />
          {FORMS.filter((each) => count(each) > 0 || each === form).map((each) => (
            <FormButton key={each} label={FORM_NAMES[each]} count={count(each)} form={each} chosen={form} />
          ))}
        </div>
        {hidden > 0 && (
          <label className="row tight small" title="Checkpoints, models of campaign cycles, replaced versions">
            <input
              type="checkbox"
              checked={!!intermediate}
              onChange={(event) =>
                void navigate({
                  search: (old) => ({ ...old, intermediate: event.target.checked || undefined }),
                  replace: true,
                })
              }
            />
            Intermediate ({number(hidden)})
          </label>
        )}
      </div>
      {items.length === 0 && (
        <Panel>
          <Empty title="No models yet">
            <Link to="/train">Start a fine-tune</Link>, or upload the folder of a model.
          </Empty>
        </Panel>
      )}
      <div className={chosen || chosenNamed ? "library with-detail" : "library"}>
        <Panel flush>
          {shown.length + shownNamed.length === 0 ? (
            <Empty title="No matching models" />
          ) : (
            <Table models={shown} named={shownNamed} chosen={id} />
          )}
          <Cut more={more}>Search finds only these.</Cut>
        </Panel>
        {chosen && <Detail key={chosen.artifact.id} model={chosen} all={items} />}
        {chosenNamed && <NamedDetail base={chosenNamed} />}
        {!chosen && !chosenNamed && id && (
          <Panel>
            <Empty title="Model not found">It was deleted, or the URL is wrong.</Empty>
          </Panel>
        )}
      </div>
    </>
  );
}

function FormButton({ label, count, form, chosen }: { label: string; count: number; form?: Form; chosen?: Form }) {
  const navigate = useNavigate({ from: "/models" });
  return (
    <button
      type="button"
      aria-pressed={form === chosen}
      onClick={() => void navigate({ search: (old) => ({ ...old, form }), replace: true })}
    >
      {label} <span className="muted num">{number(count)}</span>
    </button>
  );
}

function Table({ models, named, chosen }: { models: readonly Model[]; named: readonly NamedBase[]; chosen?: string }) {
  return (
    <table className="models">
      <thead>
        <tr>
          <th>Name</th>
          <th>Type</th>
          <th className="extra">Base</th>
          <th className="extra">Data</th>
          <th className="num">Eval loss</th>
          <th className="num hide-phone">Size</th>
          <th className="num hide-phone">Age</th>
        </tr>
      </thead>
      <tbody>
        {models.map((each) => (
          <Row key={each.artifact.id} model={each} chosen={each.artifact.id === chosen} />
        ))}
        {named.map(({ identifier, models: made }) => (
          <tr key={identifier} className={identifier === chosen ? "chosen" : undefined}>
            <td className="name">
              <NameLink id={identifier} name={shortName(identifier)} chosen={identifier === chosen} />
            </td>
            <td>
              <span className="tag">{FORM_NAMES.base}</span>
            </td>
            <td colSpan={5} className="muted">
              {identifier.startsWith("builtin:") ? "built in" : "Hugging Face Hub"}
              {made.length > 0 && `, base of ${made.length === 1 ? "1 model" : `${number(made.length)} models`}`}
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function Row({ model, chosen }: { model: Model; chosen: boolean }) {
  const { artifact, form, name, base } = model;
  const { origin } = artifact;
  const loss = changeOf(origin?.eval_loss?.[0], origin?.eval_loss?.[1]);
  return (
    <tr className={chosen ? "chosen" : undefined}>
      <td className="name">
        <NameLink id={artifact.id} name={name} chosen={chosen} />
        {form === "checkpoint" && <span className="muted small"> {artifact.name.replace("-", " ")}</span>}
      </td>
      <td>
        <span className="tag">{FORM_NAMES[form]}</span>
      </td>
      <td className="muted extra">{base ? shortName(base) : "–"}</td>
      <td className="muted extra">{origin?.data ? shortName(origin.data) : "–"}</td>
      <td className="num">
        {loss ? number(loss.after) : "–"}
        {loss?.percent != null && (
          <span className={loss.percent <= 0 ? "gain small" : "loss-of small"}>
            {" "}
            {loss.percent > 0 ? "+" : "−"}
            {Math.abs(loss.percent).toFixed(0)}%
          </span>
        )}
      </td>
      <td className="num muted hide-phone">{bytes(artifact.size_bytes)}</td>
      <td className="num muted hide-phone">
        <Time at={artifact.created_at} relative />
      </td>
    </tr>
  );
}

function NameLink({ id, name, chosen }: { id: string; name: string; chosen: boolean }) {
  return (
    <Link
      from="/models"
      to="/models"
      search={(old) => ({ ...old, id })}
      className="strong"
      aria-current={chosen ? "true" : undefined}
    >
      {name}
    </Link>
  );
}
