/** Versions of a federation's adapter, newest first; each links to its details. */
import { Link } from "@tanstack/react-router";
import type { VersionView } from "../../api/schema";
import { number } from "../../lib/format";
import { Time } from "../../parts/bits";

export function Versions({ versions, chosen }: { versions: readonly VersionView[]; chosen: number }) {
  return (
    <table>
      <thead>
        <tr>
          <th>Version</th>
          <th className="num hide-phone">Round</th>
          <th className="hide-phone">Workers</th>
          <th className="num">Examples</th>
          <th className="num">Loss</th>
          <th className="num hide-phone">Error</th>
          <th className="hide-phone">Created</th>
        </tr>
      </thead>
      <tbody>
        {versions.map((each) => (
          <tr key={each.version} className={each.version === chosen ? "chosen" : undefined}>
            <td>
              <Link
                to="/federations/$name"
                params={(old) => ({ name: old.name ?? "" })}
                search={{ version: each.version }}
                replace
                resetScroll={false}
                aria-current={each.version === chosen ? "true" : undefined}
                className="strong nowrap"
              >
                version {each.version}
              </Link>
            </td>
            <td className="num hide-phone">{number(each.round)}</td>
            <td className="muted hide-phone">
              {each.equals == null ? names(each.contributors) : `same as version ${each.equals}`}
            </td>
            <td className="num">{number(each.num_examples)}</td>
            <td className="num">{number(each.loss)}</td>
            <td className="num hide-phone">{number(each.truncation_error)}</td>
            <td className="muted nowrap hide-phone">
              <Time at={each.created_at} relative />
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

const NAMED = 4;

function names(workers: readonly string[]): string {
  const more = workers.length - NAMED;
  return workers.slice(0, NAMED).join(", ") + (more > 0 ? ` and ${more} more` : "");
}
