/** Datasets: upload, inspect, preview the training rows, train. */
import { useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { artifactQuery } from "../api/queries";
import { datasetsQuery } from "../api/queries_data";
import type { ArtifactView } from "../api/schema";
import { bytes, number } from "../lib/format";
import { DocsLink, Panel, Time } from "../parts/bits";
import { useSession } from "../parts/session";
import { Answer, Cut, Empty, Failed, Loading } from "../parts/states";
import "../styles/datasets.css";
import { Detail } from "./datasets/Detail";
import { Upload } from "./datasets/Upload";

export function Datasets() {
  const { mayChange } = useSession();
  const { id, preview, made } = useSearch({ from: "/datasets" });
  const datasets = useQuery(datasetsQuery);
  const navigate = useNavigate({ from: "/datasets" });
  return (
    <div className="page">
      <div className="row between">
        <h1>Datasets</h1>
        <DocsLink page="how-to/use-the-web-page#upload-a-dataset">Accepted formats</DocsLink>
      </div>
      {mayChange && <Upload />}
      <Answer query={datasets} rows={5}>
        {({ items, more }) =>
          items.length === 0 ? (
            <Panel>
              <Empty title="No datasets yet">
                Drop a file above, or <Link to="/train">start with a built-in dataset</Link>.
              </Empty>
            </Panel>
          ) : (
            <>
              <Origin
                items={items}
                made={made}
                onMade={(wanted) => void navigate({ search: { made: wanted || undefined }, replace: true })}
              />
              <Found
                items={items.filter((each) => !!each.task_id === !!made)}
                more={more}
                id={id}
                preview={preview}
                made={made}
              />
            </>
          )
        }
      </Answer>
    </div>
  );
}

/** Data files of runs, such as chunks of a campaign, are in a list of their own. */
function Origin({
  items,
  made,
  onMade,
}: {
  items: readonly ArtifactView[];
  made?: boolean;
  onMade: (made: boolean) => void;
}) {
  const ofRuns = items.filter((each) => each.task_id).length;
  if (ofRuns === 0 && !made) return null;
  return (
    <div className="segments" role="group" aria-label="Origin">
      <button type="button" aria-pressed={!made} onClick={() => onMade(false)}>
        Uploaded <span className="muted num">{number(items.length - ofRuns)}</span>
      </button>
      <button type="button" aria-pressed={!!made} onClick={() => onMade(true)}>
        From runs <span className="muted num">{number(ofRuns)}</span>
      </button>
    </div>
  );
}

function Found({
  items,
  more,
  id,
  preview,
  made,
}: {
  items: ArtifactView[];
  more: boolean;
  id?: string;
  preview?: string;
  made?: boolean;
}) {
  if (items.length === 0 && !id)
    return (
      <Panel>
        <Empty title="No uploaded datasets yet">Drop a file above.</Empty>
      </Panel>
    );
  return (
    <div className="datasets">
      <Listed items={items} more={more} chosen={id} made={made} />
      <Chosen items={items} id={id} preview={preview} />
    </div>
  );
}

function Listed({
  items,
  more,
  chosen,
  made,
}: {
  items: ArtifactView[];
  more: boolean;
  chosen?: string;
  made?: boolean;
}) {
  const open = chosen ?? items[0]?.id;
  return (
    <nav aria-label="Datasets" className="panel dataset-list">
      {items.map((each) => (
        <Link
          key={each.id}
          to="/datasets"
          search={{ id: each.id, made }}
          className={each.id === open ? "chosen" : undefined}
          aria-current={each.id === open ? "true" : undefined}
        >
          <span className="cut">{each.name}</span>
          <span className="muted small num nowrap">{bytes(each.size_bytes)}</span>
          <span className="muted small cut">{each.task_id ? "from a run" : each.owner}</span>
          <span className="muted small nowrap">
            <Time at={each.created_at} relative />
          </span>
        </Link>
      ))}
      <Cut more={more} />
    </nav>
  );
}

function Chosen({ items, id, preview }: { items: ArtifactView[]; id?: string; preview?: string }) {
  const listed = id ? items.find((each) => each.id === id) : items[0];
  const asked = useQuery({ ...artifactQuery(id ?? ""), enabled: id !== undefined && !listed });
  const artifact = listed ?? asked.data;
  if (artifact) return <Detail key={artifact.id} artifact={artifact} preview={preview} />;
  if (asked.error) return <Failed error={asked.error} />;
  if (asked.isLoading) return <Loading rows={6} />;
  return <Empty title="Dataset not found">It was removed, or the URL is wrong.</Empty>;
}
