/** The built-in examples, as listed by the server. */
import { useQuery } from "@tanstack/react-query";
import { useNavigate, useSearch } from "@tanstack/react-router";
import { examplesQuery } from "../../api/queries_data";
import { firstSentence, titleOf } from "../../lib/gallery";
import { DocsLink } from "../../parts/bits";
import { Answer } from "../../parts/states";

export function Gallery() {
  const navigate = useNavigate();
  const { worker } = useSearch({ from: "/new" });
  const examples = useQuery(examplesQuery);
  return (
    <div className="page">
      <div className="row between">
        <h1>New workflow {worker && <span className="muted">· on {worker}</span>}</h1>
        <DocsLink page="how-to/workflows">About workflow files</DocsLink>
      </div>
      <p className="muted">
        Start with an example and edit it before you submit. Most examples run without changes, with a built-in model
        and dataset.
      </p>
      <Answer query={examples} rows={6}>
        {(found) => (
          <div className="gallery">
            {found.map((each) => (
              <button
                key={each.name}
                type="button"
                onClick={() => void navigate({ to: "/new", search: { template: each.name, worker } })}
              >
                <strong>{titleOf(each.name)}</strong>
                <span>{firstSentence(each.description).replaceAll("`", "")}</span>
                <span className="kinds">{each.kinds.join(", ")}</span>
              </button>
            ))}
          </div>
        )}
      </Answer>
    </div>
  );
}
