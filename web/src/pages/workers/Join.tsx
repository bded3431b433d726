/** Commands to join a machine. */
import { Link } from "@tanstack/react-router";
import { type ReactNode, useState } from "react";
import { Copyable, DocsLink, Panel, Tabs } from "../../parts/bits";
import { useSession } from "../../parts/session";
import { Invite } from "./Invite";

type Way = "http" | "redis" | "agent";
const WAYS = [
  ["http", "Worker over HTTP"],
  ["redis", "Worker over Redis"],
  ["agent", "Training agent"],
] as const;

const DOCS: Record<Way, string> = {
  http: "how-to/join-a-worker",
  redis: "how-to/secure-redis",
  agent: "how-to/agent-behind-nat",
};

export function Join() {
  const [way, setWay] = useState<Way>("http");
  return (
    <Panel title="Join a machine" actions={<DocsLink page={DOCS[way]} />}>
      <div className="stack">
        <Tabs tabs={WAYS} chosen={way} onChoose={setWay} />
        <div className="muted small">{ABOUT[way]}</div>
        <ol className="join-steps">
          <li>
            <strong>Install Tunefleet on the machine</strong>
            <Copyable text={`pip install "$(curl -fsS ${location.origin}/install)"`} />
          </li>
          <li>
            <strong>{way === "http" ? "Create a join command and run it there" : "Start it there"}</strong>
            {way === "http" ? <Invite /> : <Copyable text={commands(way, location.origin)} />}
          </li>
        </ol>
        <Hint way={way} />
      </div>
    </Panel>
  );
}

function commands(way: "redis" | "agent", here: string): string {
  if (way === "redis")
    return `export TUNEFLEET_REDIS_URL=redis://HOST:6379/0\nexport TUNEFLEET_SERVER_URL=${here}\nexport TUNEFLEET_RESULTS_DIR=./results_workers\ntunefleet worker`;
  return `tunefleet agent install --set TUNEFLEET_BACKEND_URL=${here} --set TUNEFLEET_BACKEND_KEY=KEY\ntunefleet agent status`;
}

const ABOUT: Record<Way, ReactNode> = {
  http:
    "The worker only makes outbound connections, so the machine needs no open port and can be behind NAT. The command " +
    "works once and expires after 1 hour. To start the worker later, “tunefleet worker” is enough.",
  redis: "For large fleets. Server and worker connect to the same Redis; files, logs and metrics still use HTTP.",
  agent: "The agent polls for training runs over outbound connections. It restarts with the machine.",
};

function Hint({ way }: { way: Way }) {
  if (way === "redis")
    return <div className="muted small">No key needed: anyone who can write to that Redis can join.</div>;
  return (
    <div className="small">
      {way === "agent" && <Key />}
      {location.hostname === "127.0.0.1" || location.hostname === "localhost" ? (
        <> You opened this page on a loopback address. Other machines need the server's network address.</>
      ) : null}
    </div>
  );
}

function Key() {
  const { isAdmin } = useSession();
  return (
    <>
      KEY is an API key with the worker role:{" "}
      {isAdmin ? (
        <Link to="/settings" hash="keys">
          create it in the settings
        </Link>
      ) : (
        "ask an administrator"
      )}
      .
    </>
  );
}
