/** Timeline of the newest rounds, and below it the uploads of each worker. */
import { Link } from "@tanstack/react-router";
import type { RoundView, UpdateView } from "../../api/schema";
import { localTime, number } from "../../lib/format";
import { bandOf, placeOf, type Span, spanOf } from "../../lib/span";
import { plain } from "../../lib/words";
import { useNow } from "../../parts/clock";
import { Lane, Lanes } from "../../parts/Lanes";

const SHOWN = 16;
const WORKERS = 10;
const FAILED = 3;

const ROUND_TONES: Record<string, string> = {
  published: "good",
  failed: "bad",
  abandoned: "weak",
  aggregating: "busy",
  publishing: "busy",
  collecting: "busy",
};
const UPDATE_TONES: Record<string, string> = { aggregated: "good", counted: "busy", rejected: "bad", discarded: "bad" };

export function Rounds({
  rounds,
  updates,
  version,
  live,
}: {
  rounds: readonly RoundView[];
  updates: readonly UpdateView[];
  version: number | undefined;
  /** The time axis reaches to now. */
  live: boolean;
}) {
  const now = useNow();
  const shown = rounds.slice(0, SHOWN).reverse();
  const since = Date.parse(shown[0]?.opened_at ?? "");
  const inside = updates.filter((each) => Date.parse(each.created_at) >= since);
  const span = spanOf(
    [...shown.flatMap((each) => [each.opened_at, each.finished_at]), ...inside.map((each) => each.created_at)],
    live ? now : undefined,
  );
  if (!span) return null;
  const workers = [...new Set(inside.map((each) => each.worker))];
  const named = workers.slice(0, WORKERS).sort();
  return (
    <>
      <Lanes span={span} label="Round timeline" live={live}>
        <Lane name="round" tall>
          {shown.map((each) => (
            <Band
              key={each.number}
              round={each}
              span={span}
              chosen={each.version != null && each.version === version}
            />
          ))}
        </Lane>
        {named.map((worker) => (
          <Lane key={worker} name={worker}>
            {inside
              .filter((each) => each.worker === worker)
              .map((each) => (
                <span
                  key={each.id}
                  className={`dot ${UPDATE_TONES[each.state] ?? ""}`}
                  style={{ left: `${placeOf(span, each.created_at)}%` }}
                  title={said(each)}
                />
              ))}
          </Lane>
        ))}
        {workers.length > named.length && (
          <div className="muted small">and {number(workers.length - named.length)} more workers</div>
        )}
      </Lanes>
      <Failures rounds={rounds} />
    </>
  );
}

/** Errors of the newest failed rounds. */
function Failures({ rounds }: { rounds: readonly RoundView[] }) {
  const failed = rounds.filter((each) => each.status === "failed" && each.why).slice(0, FAILED);
  if (failed.length === 0) return null;
  return (
    <ul className="failures small">
      {failed.map((each) => (
        <li key={each.number}>
          <strong>Round {each.number} failed</strong> <span className="muted wrap">{each.why}</span>
        </li>
      ))}
    </ul>
  );
}

function Band({ round, span, chosen }: { round: RoundView; span: Span; chosen: boolean }) {
  const about = [
    `Round ${round.number}: ${plain(round.status)}`,
    `${(round.uploaded ?? []).length} updates`,
    `opened ${localTime(round.opened_at)}`,
    round.version != null && `published version ${round.version}`,
    round.why,
  ]
    .filter(Boolean)
    .join(", ");
  const common = {
    className: `band ${ROUND_TONES[round.status] ?? ""} ${chosen ? "chosen" : ""}`,
    style: bandOf(span, round.opened_at, round.finished_at),
    title: about,
    "aria-label": about,
  };
  if (round.version == null)
    return (
      <span {...common} role="img">
        <span>{round.number}</span>
      </span>
    );
  return (
    <Link
      {...common}
      aria-current={chosen ? "true" : undefined}
      to="/federations/$name"
      params={(old) => ({ name: old.name ?? "" })}
      search={{ version: round.version }}
      replace
      resetScroll={false}
    >
      <span>{round.number}</span>
    </Link>
  );
}

function said(update: UpdateView): string {
  const parts = [
    `${update.worker}: ${plain(update.state)}`,
    `step ${number(update.step)}`,
    `${number(update.num_examples)} examples`,
    localTime(update.created_at),
    update.reason,
  ];
  return parts.filter(Boolean).join(", ");
}
