/** One federation: round timeline, results, and contributions of each worker. */
import { useQuery } from "@tanstack/react-query";
import { useNavigate, useParams, useSearch } from "@tanstack/react-router";
import { federationQuery, refusedQuery, roundsQuery, updatesQuery, versionsQuery } from "../api/queries_federated";
import type { FederationDetail } from "../api/schema";
import { number } from "../lib/format";
import { Id, Panel, Status, TaskLink, Time } from "../parts/bits";
import { Scrolls } from "../parts/Lanes";
import { Plot } from "../parts/Plot";
import { Answer, Empty } from "../parts/states";
import { Actions } from "./federation/Actions";
import { Members } from "./federation/Members";
import { Refused } from "./federation/Refused";
import { Rounds } from "./federation/Rounds";
import { Version } from "./federation/Version";
import { Versions } from "./federation/Versions";

export function Federation() {
  const { name } = useParams({ from: "/federations/$name" });
  const federation = useQuery(federationQuery(name));
  return (
    <div className="page">
      {!federation.data && <h1>{name}</h1>}
      <Answer query={federation} rows={6}>
        {(found) => <Shown federation={found} reference={name} />}
      </Answer>
    </div>
  );
}

function Shown({ federation, reference }: { federation: FederationDetail; reference: string }) {
  const search = useSearch({ from: "/federations/$name" });
  const chosen = search.version ?? (federation.version || undefined);
  const rounds = useQuery(roundsQuery(reference));
  const updates = useQuery(updatesQuery(reference));
  const refused = useQuery(refusedQuery(reference));
  return (
    <>
      <Head federation={federation} />
      <Panel title="Rounds" actions={<Key />}>
        <Answer query={rounds}>
          {({ items }) =>
            items.length === 0 ? (
              <Empty title="No rounds yet">The first round starts when the federation starts.</Empty>
            ) : (
              <Rounds
                rounds={items}
                updates={updates.data?.items ?? []}
                version={chosen}
                live={federation.status === "running"}
              />
            )
          }
        </Answer>
      </Panel>
      {chosen === undefined ? (
        <Panel title="Versions">
          <Empty title="No versions yet">Each completed round publishes a version.</Empty>
        </Panel>
      ) : (
        <Made federation={federation} reference={reference} chosen={chosen} />
      )}
      <div className="two">
        <Panel title="Workers" flush>
          <Scrolls label="Workers">
            <Members members={federation.member_list ?? []} />
          </Scrolls>
        </Panel>
        <Panel title="Rejected updates" flush>
          <Answer query={refused}>
            {({ items }) => (
              <Scrolls label="Rejected updates">
                <Refused updates={items} />
              </Scrolls>
            )}
          </Answer>
        </Panel>
      </div>
      <Panel title="Spec">
        <details>
          <summary>As submitted</summary>
          <pre>{JSON.stringify(federation.spec, null, 2)}</pre>
        </details>
      </Panel>
    </>
  );
}

/** Charts of the versions, and one version in full. */
function Made({ federation, reference, chosen }: { federation: FederationDetail; reference: string; chosen: number }) {
  const navigate = useNavigate({ from: "/federations/$name" });
  const versions = useQuery(versionsQuery(reference));
  const choose = (version: number) => void navigate({ search: { version }, replace: true, resetScroll: false });
  return (
    <div className="columns">
      <div className="stack">
        <Answer query={versions}>
          {({ items }) => {
            const oldest = [...items].reverse();
            const loss = measured(oldest, (each) => each.loss);
            const error = measured(oldest, (each) => each.truncation_error);
            return (
              <>
                <div className="two">
                  {loss.length > 0 && (
                    <Plot
                      title="Loss per version"
                      about="version"
                      rows={[{ label: "Loss", color: "var(--line-1)", points: loss }]}
                      chosen={chosen}
                      onChoose={choose}
                    />
                  )}
                  {error.length > 0 && (
                    <Plot
                      title="Truncation error"
                      about="version"
                      rows={[{ label: "Truncation error", color: "var(--line-2)", points: error }]}
                      chosen={chosen}
                      onChoose={choose}
                    />
                  )}
                </div>
                <Panel title="Versions" flush>
                  <Scrolls label="Versions">
                    <Versions versions={items} chosen={chosen} />
                  </Scrolls>
                </Panel>
              </>
            );
          }}
        </Answer>
      </div>
      <Version federation={federation} reference={reference} version={chosen} />
    </div>
  );
}

function measured<T extends { version: number }>(versions: readonly T[], of: (each: T) => number | null | undefined) {
  return versions.flatMap((each) => {
    const value = of(each);
    return value == null ? [] : [{ at: each.version, value }];
  });
}

function Head({ federation }: { federation: FederationDetail }) {
  const rounds = typeof federation.spec.rounds === "number" ? federation.spec.rounds : undefined;
  return (
    <div className="task-head">
      <div className="row between">
        <div className="row">
          <h1>{federation.name}</h1>
          <Status status={federation.status} />
          <Id value={federation.id} />
        </div>
        <Actions federation={federation} />
      </div>
      <div className="row muted small facts-line">
        <span>{federation.strategy}</span>
        {federation.base_model && <span>base model {federation.base_model}</span>}
        <span className="num">version {number(federation.version)}</span>
        {federation.round != null && (
          <span className="num">
            round {number(federation.round)}
            {rounds && ` of ${number(rounds)}`}
          </span>
        )}
        <span className="num">{number(federation.members)} workers</span>
        {federation.task_id && (
          <span>
            run <TaskLink id={federation.task_id} />
          </span>
        )}
        <span>owner {federation.owner}</span>
        <span>
          created <Time at={federation.created_at} relative />
        </span>
      </div>
      {federation.why && <div>{federation.why}</div>}
    </div>
  );
}

function Key() {
  return (
    <div className="key">
      <span>
        <i className="dot good" />
        aggregated
      </span>
      <span>
        <i className="dot busy" />
        accepted
      </span>
      <span>
        <i className="dot" />
        pending or replaced
      </span>
      <span>
        <i className="dot bad" />
        rejected
      </span>
    </div>
  );
}
