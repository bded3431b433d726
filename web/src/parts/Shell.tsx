/** The frame of every page: navigation, session, state of the live connection. */
import { useQueryClient } from "@tanstack/react-query";
import { Link, Outlet, useLocation } from "@tanstack/react-router";
import { useEffect, useState, useSyncExternalStore } from "react";
import { api, ask } from "../api/client";
import { follow, liveState, onLiveState } from "../api/live";
import type { ServerInfo } from "../api/schema";
import { forgetKept } from "./kept";
import { Palette } from "./Palette";
import { SessionContext } from "./session";
import { setTheme, type Theme, useTheme } from "./theme";
import { useTitle } from "./title";
import { Toasts, toastError } from "./toasts";
import "../styles/shell.css";

const GROUPS = [
  [
    "",
    [
      ["/", "Overview"],
      ["/tasks", "Runs"],
      ["/train", "Fine-tune"],
      ["/new", "New run"],
    ],
  ],
  [
    "Data and models",
    [
      ["/datasets", "Datasets"],
      ["/playground", "Playground"],
    ],
  ],
  [
    "Long-running",
    [
      ["/federations", "Federations"],
      ["/campaigns", "Campaigns"],
    ],
  ],
  [
    "Server",
    [
      ["/workers", "Workers"],
      ["/settings", "Settings"],
    ],
  ],
] as const;
/** On a phone, these are at the bottom; the menu has all pages. */
const FIRST = [
  ["/", "Overview"],
  ["/tasks", "Runs"],
  ["/train", "Fine-tune"],
  ["/workers", "Workers"],
] as const;

export function Shell({ info }: { info: ServerInfo }) {
  const client = useQueryClient();
  useEffect(() => follow(client), [client]);
  const mayChange = info.role === "admin" || info.role === "member";
  const menu = useMenu();
  usePageTitle();
  const shown = ([to]: readonly [string, string]) => (to !== "/new" && to !== "/train") || mayChange;
  return (
    <SessionContext value={{ info, mayChange, isAdmin: info.role === "admin" }}>
      <a className="skip button" href="#main">
        Skip to content
      </a>
      <div className="shell">
        <div className={menu.open ? "side open" : "side"} id="menu">
          <Link to="/" className="brand">
            <img src="/ui/icon.svg" alt="" width="20" height="20" />
            Tunefleet
          </Link>
          <nav aria-label="Pages">
            {GROUPS.map(([title, pages]) => (
              <div key={title} className="group">
                {title && <p>{title}</p>}
                <ul aria-label={title || undefined}>
                  {pages.filter(shown).map(([to, name]) => (
                    <li key={to}>
                      <PageLink to={to} name={name} />
                    </li>
                  ))}
                </ul>
              </div>
            ))}
          </nav>
          <Foot info={info} />
        </div>
        <main id="main" className="main" tabIndex={-1}>
          <Connection />
          <Outlet />
        </main>
        <div className="bottom">
          <nav aria-label="Most used pages">
            {FIRST.filter(shown).map(([to, name]) => (
              <PageLink key={to} to={to} name={name} />
            ))}
            <button type="button" aria-expanded={menu.open} aria-controls="menu" onClick={menu.toggle}>
              Menu
            </button>
          </nav>
        </div>
      </div>
      <Palette />
      <Toasts />
    </SessionContext>
  );
}

/** Pages with a name of their own, such as that of a run, set it themselves. */
function usePageTitle(): void {
  const { pathname } = useLocation();
  const page = GROUPS.flatMap(([, pages]) => [...pages]).find(([to]) => to === pathname);
  useTitle(page?.[1]);
}

function PageLink({ to, name }: { to: (typeof GROUPS)[number][1][number][0]; name: string }) {
  return (
    <Link to={to} activeOptions={{ exact: to === "/", includeSearch: false }}>
      {name}
    </Link>
  );
}

/** The menu on a phone: navigation and Escape close it. */
function useMenu() {
  const [open, setOpen] = useState(false);
  const { pathname } = useLocation();
  // biome-ignore lint/correctness/useExhaustiveDependencies: whenever the page changes
  useEffect(() => setOpen(false), [pathname]);
  useEffect(() => {
    if (!open) return;
    const close = (event: KeyboardEvent) => event.key === "Escape" && setOpen(false);
    window.addEventListener("keydown", close);
    return () => window.removeEventListener("keydown", close);
  }, [open]);
  return { open, toggle: () => setOpen(!open) };
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
    forgetKept();
  };
  return (
    <div className="foot small">
      <div className="who muted" title={`Tunefleet ${info.version}`}>
        {info.owner} · {info.role}
      </div>
      <select aria-label="Theme" value={theme} onChange={(event) => setTheme(event.target.value as Theme)}>
        <option value="system">System</option>
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
  if (state === "outdated")
    return (
      <div className="banner row between" role="alert">
        <span>The server was updated. This page is from an earlier version.</span>
        <button type="button" onClick={() => location.reload()}>
          Reload
        </button>
      </div>
    );
  if (state !== "lost") return null;
  return (
    <div className="banner" role="alert">
      Connection to the server lost. The page may be out of date; it reconnects automatically.
    </div>
  );
}
