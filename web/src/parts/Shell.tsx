/** The frame of every page: navigation, session, state of the live connection. */
import { useQueryClient } from "@tanstack/react-query";
import { Link, Outlet, useLocation } from "@tanstack/react-router";
import { Keyboard, Menu } from "lucide-react";
import { useEffect, useRef, useState, useSyncExternalStore } from "react";
import { api, ask } from "../api/client";
import { follow, liveState, onLiveState, reconnect } from "../api/live";
import type { ServerInfo } from "../api/schema";
import { forgetKept } from "./kept";
import { type Opened, Palette } from "./Palette";
import { PAGES, type PageEntry, pagesFor } from "./pages";
import { SessionContext } from "./session";
import { setTheme, type Theme, useTheme } from "./theme";
import { useTitle } from "./title";
import { Toasts, toastError } from "./toasts";
import "../styles/shell.css";

/** On a phone, these are at the bottom; the menu has all pages. */
const FIRST: readonly string[] = ["/", "/tasks", "/train", "/workers"];
const BACK_SHOWN_MS = 4000;

export function Shell({ info }: { info: ServerInfo }) {
  const client = useQueryClient();
  useEffect(() => follow(client), [client]);
  const mayChange = info.role === "admin" || info.role === "member";
  const menu = useMenu();
  const [opened, setOpened] = useState<Opened>(null);
  usePageTitle();
  const pages = pagesFor(mayChange);
  const groups = [...new Set(pages.map((page) => page.group))];
  return (
    <SessionContext value={{ info, mayChange, isAdmin: info.role === "admin" }}>
      <a className="skip button" href="#main">
        Skip to content
      </a>
      <div className="shell">
        <header className={menu.open ? "side open" : "side"} id="menu">
          <Link to="/" className="brand">
            <img src="/ui/icon.svg" alt="" width="20" height="20" />
            Tunefleet
          </Link>
          <nav aria-label="Pages">
            {groups.map((title) => (
              <div key={title} className="group">
                {title && <p>{title}</p>}
                <ul aria-label={title || undefined}>
                  {pages
                    .filter((page) => page.group === title)
                    .map((page) => (
                      <li key={page.to}>
                        <PageLink page={page} />
                      </li>
                    ))}
                </ul>
              </div>
            ))}
          </nav>
          <Foot info={info} onKeys={() => setOpened("keys")} />
        </header>
        <main id="main" className="main" tabIndex={-1}>
          <Connection />
          <Outlet />
        </main>
        <div className="bottom">
          <nav aria-label="Most used pages">
            {pages
              .filter((page) => FIRST.includes(page.to))
              .map((page) => (
                <PageLink key={page.to} page={page} />
              ))}
            <button type="button" aria-expanded={menu.open} aria-controls="menu" onClick={menu.toggle}>
              <Menu aria-hidden="true" />
              Menu
            </button>
          </nav>
        </div>
      </div>
      <Palette opened={opened} onOpen={setOpened} />
      <Toasts />
    </SessionContext>
  );
}

/** Pages with a name of their own, such as that of a run, set it themselves. */
function usePageTitle(): void {
  const { pathname } = useLocation();
  useTitle(PAGES.find(({ to }) => to === pathname)?.name);
}

function PageLink({ page: { to, name, icon: Icon } }: { page: PageEntry }) {
  return (
    <Link to={to} activeOptions={{ exact: to === "/", includeSearch: false }}>
      <Icon aria-hidden="true" />
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

function Foot({ info, onKeys }: { info: ServerInfo; onKeys: () => void }) {
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
      <div className="row tight">
        <button type="button" className="grow" onClick={() => void leave()}>
          Log out
        </button>
        <button
          type="button"
          className="hide-phone"
          aria-label="Keyboard shortcuts"
          title="Keyboard shortcuts (?)"
          onClick={onKeys}
        >
          <Keyboard aria-hidden="true" />
        </button>
      </div>
    </div>
  );
}

/** A lost connection, then its return. */
function Connection() {
  const state = useSyncExternalStore(onLiveState, liveState);
  const [back, setBack] = useState(false);
  const before = useRef(state);
  useEffect(() => {
    const returned = before.current === "lost" && state === "open";
    before.current = state;
    setBack(returned);
    if (!returned) return;
    const timer = window.setTimeout(() => setBack(false), BACK_SHOWN_MS);
    return () => window.clearTimeout(timer);
  }, [state]);
  if (state === "outdated")
    return (
      <div className="banner row between" role="alert">
        <span>The server was updated. This page is from an earlier version.</span>
        <button type="button" onClick={() => location.reload()}>
          Reload
        </button>
      </div>
    );
  if (state === "lost")
    return (
      <div className="banner row between" role="alert">
        <span>Connection to the server lost. Runs continue; this page may be out of date. Reconnecting …</span>
        <button type="button" onClick={reconnect}>
          Reconnect now
        </button>
      </div>
    );
  if (!back) return null;
  return (
    <div className="banner good" role="status">
      Connected again. The page is up to date.
    </div>
  );
}
