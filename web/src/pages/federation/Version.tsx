/** One version: contributions with weights, rejected updates, strategy report, rollback. */
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { useState } from "react";
import { api, ask } from "../../api/client";
import { versionQuery } from "../../api/queries_federated";
import type { Contribution, FederationDetail, VersionDetail } from "../../api/schema";
import { bytes, number } from "../../lib/format";
import { Bar, Confirm, Id, Panel, Time } from "../../parts/bits";
import { useMaySteer } from "../../parts/session";
import { Answer, Empty } from "../../parts/states";
import { toast } from "../../parts/toasts";

export function Version({
  federation,
  reference,
  version,
}: {
  federation: FederationDetail;
  reference: string;
  version: number;
}) {
  const found = useQuery(versionQuery(reference, version));
  return (
    <Panel
      title={`Version ${version}`}
      actions={version !== federation.version && <Rollback federation={federation} version={version} />}
    >
      <Answer query={found} rows={6}>
        {(detail) => <Shown version={detail} reference={reference} />}
      </Answer>
    </Panel>
  );
}

function Shown({ version, reference }: { version: VersionDetail; reference: string }) {
  const given = version.contributions ?? [];
  const refused = version.refused ?? [];
  const adapter = `/api/v1/federations/${encodeURIComponent(reference)}/versions/${version.version}/adapter`;
  return (
    <div className="stack">
      {given.length === 0 ? <Empty title="No updates in this version" /> : <Contributions given={given} />}
      {refused.length > 0 && (
        <div>
          <h3>Rejected</h3>
          <ul className="failures">
            {refused.map((each) => (
              <li key={`${each.worker} ${each.update}`}>
                <strong>{each.worker}</strong>
                <div className="small wrap muted">{each.reason}</div>
              </li>
            ))}
          </ul>
        </div>
      )}
      <dl className="facts small">
        <dt>Created</dt>
        <dd>
          <Time at={version.created_at} />
          {version.equals != null && `, same as version ${version.equals}`}
        </dd>
        <dt>Strategy</dt>
        <dd>{version.strategy}</dd>
        {figures(version.report ?? {}).map(([name, value]) => (
          <Fact key={name} name={name} value={value} />
        ))}
        <dt>Adapter</dt>
        <dd>
          <a href={adapter} download>
            Download
          </a>{" "}
          <span className="muted num">{bytes(version.size_bytes)}</span>
        </dd>
        <dt>Artifact</dt>
        <dd>
          <Id value={version.artifact_id} />
        </dd>
      </dl>
      <Layers report={version.report ?? {}} />
      {notes(version.report ?? {}).map((note) => (
        <div key={note} className="muted small">
          {note}
        </div>
      ))}
    </div>
  );
}

function Fact({ name, value }: { name: string; value: string }) {
  return (
    <>
      <dt>{name}</dt>
      <dd className="num-left">{value}</dd>
    </>
  );
}

function Contributions({ given }: { given: readonly Contribution[] }) {
  const most = Math.max(...given.map((each) => each.weight));
  return (
    <table className="bare">
      <thead>
        <tr>
          <th>Worker</th>
          <th>Weight</th>
          <th className="num">Examples</th>
          <th className="num">Loss</th>
        </tr>
      </thead>
      <tbody>
        {[...given]
          .sort((a, b) => b.weight - a.weight)
          .map((each) => (
            <tr key={each.update}>
              <td
                title={`update ${each.update}, step ${each.step}${each.norm == null ? "" : `, norm ${number(each.norm)}`}`}
              >
                {each.worker}
                <div className="muted small num nowrap">
                  step {number(each.step)}
                  {each.base_version != null &&
                    ` from ${each.base_version ? `v${each.base_version}` : "the base model"}`}
                </div>
              </td>
              <td className="weight">
                <span className="num">{each.weight.toFixed(3)}</span>
                <Bar value={most > 0 ? (100 * each.weight) / most : 0} label={`Weight of ${each.worker}`} />
              </td>
              <td className="num">{number(each.num_examples)}</td>
              <td className="num">
                {number(each.losses?.after)}
                {each.losses?.before != null && <div className="muted small">from {number(each.losses.before)}</div>}
              </td>
            </tr>
          ))}
      </tbody>
    </table>
  );
}

const FIGURES: readonly (readonly [string, string])[] = [
  ["error", "Truncation error"],
  ["rank", "Rank"],
  ["seconds", "Duration, s"],
];

function figures(report: Record<string, unknown>): [string, string][] {
  return FIGURES.flatMap(([key, name]): [string, string][] => {
    const value = report[key];
    return typeof value === "number" ? [[name, number(value)]] : [];
  });
}

function notes(report: Record<string, unknown>): string[] {
  return Array.isArray(report.notes) ? report.notes.map(String) : [];
}

const WORST = 8;

/** The layers with the largest truncation error. */
function Layers({ report }: { report: Record<string, unknown> }) {
  const layers = Object.entries((report.layers ?? {}) as Record<string, { error: number; rank: number }>)
    .filter(([, layer]) => layer.error > 0)
    .sort(([, a], [, b]) => b.error - a.error);
  if (layers.length === 0) return null;
  const most = layers[0]?.[1].error ?? 1;
  return (
    <details>
      <summary className="small">
        Truncation error by layer <span className="muted">(top {Math.min(WORST, layers.length)})</span>
      </summary>
      <ul className="layers small">
        {layers.slice(0, WORST).map(([name, layer]) => (
          <li key={name}>
            <span className="cut" title={name}>
              {name}
            </span>
            <span className="num">{number(layer.error)}</span>
            <Bar value={(100 * layer.error) / most} label={`Error of ${name}`} />
          </li>
        ))}
      </ul>
    </details>
  );
}

function Rollback({ federation, version }: { federation: FederationDetail; version: number }) {
  const may = useMaySteer(federation);
  const client = useQueryClient();
  const navigate = useNavigate({ from: "/federations/$name" });
  const [asking, setAsking] = useState(false);
  const back = useMutation({
    mutationFn: () =>
      ask(
        api.POST("/api/v1/federations/{federation_id}/rollback", {
          params: { path: { federation_id: federation.id } },
          body: { version },
        }),
      ),
    onSuccess: (made) => {
      toast(`Rolled back to version ${version} as version ${made.version}`, "good");
      void navigate({ search: { version: made.version }, replace: true, resetScroll: false });
    },
    onSettled: () =>
      client.invalidateQueries({ predicate: ({ queryKey }) => String(queryKey[0]).startsWith("federation") }),
  });
  if (!may) return null;
  return (
    <>
      <button type="button" onClick={() => setAsking(true)} disabled={back.isPending}>
        Roll back
      </button>
      {asking && (
        <Confirm
          title={`Roll back to version ${version}?`}
          action="Roll back"
          danger
          onDo={() => back.mutate()}
          onClose={() => setAsking(false)}
        >
          It is published again as the newest version, under a new number, and workers fetch it. Updates received for
          the open round are discarded, because they were trained on a later version.
        </Confirm>
      )}
    </>
  );
}
