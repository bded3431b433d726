/** How a machine joins, as commands to copy. */
import { Link } from "@tanstack/react-router";
import { type ReactNode, useState } from "react";
import { Copyable, Panel, Tabs } from "../../parts/bits";
import { useSession } from "../../parts/session";
import { Invite } from "./Invite";

type Way = "http" | "redis" | "agent";
const WAYS = [
  ["http", "Worker over HTTP, also behind NAT"],
  ["redis", "Worker over Redis"],
  ["agent", "Training agent behind NAT"],
] as const;

export function Join() {
  const [way, setWay] = useState<Way>("http");
  return (
    <Panel title="Run this on the new machine">
      <div className="stack">
        <Tabs tabs={WAYS} chosen={way} onChoose={setWay} />
        <Copyable text={`pip install "$(curl -fsS ${location.origin}/install)"`} />
        {way === "http" ? <Invite /> : <Copyable text={commands(way, location.origin)} />}
        <div className="muted small">{ABOUT[way]}</div>
        <Hint way={way} />
      </div>
    </Panel>
  );
}

function commands(way: "redis" | "agent", here: string): string {
  if (way === "redis")
    return `export REDIS_URL=redis://HOST:6379/0\nexport ORCHESTRATOR_BASE_URL=${here}\nexport RESULTS_DIR=./results_workers\ntunefleet worker`;
  return `tunefleet agent install --set BACKEND_URL=${here} --set API_KEY=KEY\ntunefleet agent status`;
}

const ABOUT: Record<Way, ReactNode> = {
  http:
    "The command is good once, for an hour; from then on “tunefleet worker” is enough. The worker opens every " +
    "connection itself, so the machine needs no open port and may stand behind NAT.",
  redis: "For large fleets: server and worker need the same Redis; files, logs and metrics still go over HTTP.",
  agent: "The agent polls for trainings and opens every connection itself; it starts again with the machine.",
};

function Hint({ way }: { way: Way }) {
  if (way === "redis") return <div className="muted small">It needs no key: who may write to that Redis may join.</div>;
  return (
    <div className="small">
      {way === "agent" && <Key />}
      {location.hostname === "127.0.0.1" || location.hostname === "localhost" ? (
        <> This page was opened on loopback: another machine needs the server's address in the network.</>
      ) : null}
    </div>
  );
}

function Key() {
  const { isAdmin } = useSession();
  return (
    <>
      KEY is one of the role worker:{" "}
      {isAdmin ? (
        <Link to="/settings" hash="keys">
          make it in the settings
        </Link>
      ) : (
        "an administrator makes it"
      )}
      , or with <code>tunefleet keys create NAME --role worker</code>.
    </>
  );
}
