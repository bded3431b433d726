/** What stands around every page: navigation, who is logged in, the state of the live connection. */
import { useQueryClient } from "@tanstack/react-query";
import { Link, Outlet } from "@tanstack/react-router";
import { useEffect, useSyncExternalStore } from "react";
import { api, ask } from "../api/client";
import { follow, liveState, onLiveState } from "../api/live";
import type { ServerInfo } from "../api/schema";
import { SessionContext } from "./session";
import { setTheme, type Theme, useTheme } from "./theme";
import { Toasts, toastError } from "./toasts";

const PAGES = [
  ["/", "Overview"],
  ["/tasks", "Tasks"],
  ["/new", "New task"],
  ["/datasets", "Datasets"],
  ["/playground", "Playground"],
  ["/federations", "Federations"],
  ["/campaigns", "Campaigns"],
  ["/workers", "Workers"],
  ["/settings", "Settings"],
] as const;

export function Shell({ info }: { info: ServerInfo }) {
  const client = useQueryClient();
  useEffect(() => follow(client), [client]);
  const mayChange = info.role === "admin" || info.role === "member";
  return (
    <SessionContext value={{ info, mayChange, isAdmin: info.role === "admin" }}>
      <a className="skip button" href="#main">
        To the page's content
      </a>
      <div className="shell">
        <div className="side">
          <Link to="/" className="brand">
            <img src="/ui/icon.svg" alt="" width="20" height="20" />
            Tunefleet
          </Link>
          <nav aria-label="Pages">
            {PAGES.filter(([to]) => to !== "/new" || mayChange).map(([to, name]) => (
              <Link key={to} to={to} activeOptions={{ exact: to === "/", includeSearch: false }}>
                {name}
              </Link>
            ))}
          </nav>
          <Foot info={info} />
        </div>
        <main id="main" className="main" tabIndex={-1}>
          <Connection />
          <Outlet />
        </main>
      </div>
      <Toasts />
    </SessionContext>
  );
}

function Foot({ info }: { info: ServerInfo }) {
  const client = useQueryClient();
  const theme = useTheme();
  const leave = async () => {
    try {
      await ask(api.DELETE("/api/v1/session"));
    } catch (error) {
      toastError(error);
      return;
    }
    client.setQueryData<ServerInfo>(["info"], { ...info, authenticated: false, role: null, owner: null });
    // What this key could see is not for the next one.
    client.removeQueries({ predicate: (query) => query.queryKey[0] !== "info" });
  };
  return (
    <div className="foot small">
      <div className="who muted" title={`Tunefleet ${info.version}`}>
        {info.owner} · {info.role}
      </div>
      <select aria-label="Theme" value={theme} onChange={(event) => setTheme(event.target.value as Theme)}>
        <option value="system">As the system</option>
        <option value="light">Light</option>
        <option value="dark">Dark</option>
      </select>
      <button type="button" onClick={() => void leave()}>
        Log out
      </button>
    </div>
  );
}

function Connection() {
  const state = useSyncExternalStore(onLiveState, liveState);
  if (state !== "lost") return null;
  return (
    <div className="banner" role="alert">
      The connection to the server is lost. What you see may be old; the page goes on by itself once it is back.
    </div>
  );
}
