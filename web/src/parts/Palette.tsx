/** Command palette (Ctrl+K or ⌘K): pages, and runs by name or id; and the keys of all pages. */

import { useInfiniteQuery } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { useEffect, useRef, useState } from "react";
import { tasksQuery } from "../api/queries";
import { plain } from "../lib/words";
import { type PageEntry, pagesFor } from "./pages";
import { useSession } from "./session";
import { isTyping } from "./typing";

/** How long the second key of `g r` may take. */
const CHORD_MS = 1200;
const RUNS_SHOWN = 8;

const KEYS: readonly (readonly [keys: readonly string[], what: string])[] = [
  [["Ctrl K", "⌘ K"], "Go to a page or a run"],
  [["/"], "Search in the list"],
  [["j", "k"], "Next and previous row"],
  [["Enter"], "Open the selected row"],
  [["Esc"], "Close a dialog"],
  [["?"], "Keyboard shortcuts"],
];

export type Opened = "palette" | "keys" | null;

export function Palette({ opened, onOpen }: { opened: Opened; onOpen: (what: Opened) => void }) {
  const { mayChange } = useSession();
  const pages = pagesFor(mayChange);
  useKeys(pages, onOpen);
  const close = () => onOpen(null);
  if (opened === "keys") return <Keys pages={pages} onClose={close} />;
  return opened && <GoTo pages={pages} onClose={close} />;
}

/** Ctrl+K anywhere; the other keys outside of inputs. */
function useKeys(pages: readonly PageEntry[], onOpen: (what: Opened) => void): void {
  const navigate = useNavigate();
  const chord = useRef(0);
  useEffect(() => {
    const press = (event: KeyboardEvent) => {
      if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
        event.preventDefault();
        onOpen("palette");
        return;
      }
      // A list with keys of its own has handled it.
      if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
      if (event.key === "g") chord.current = Date.now();
      else if (event.key === "j") step(1);
      else if (event.key === "k") step(-1);
      else if (event.key === "?") onOpen("keys");
      else if (event.key === "/") {
        const search = document.querySelector<HTMLInputElement>("main input[type=search]");
        if (!search) return;
        event.preventDefault();
        search.focus();
      }
    };
    // Before lists see it: the second key of a pair is no key of theirs.
    const pair = (event: KeyboardEvent) => {
      if (Date.now() - chord.current >= CHORD_MS || isTyping(event.target)) return;
      chord.current = 0;
      const page = pages.find(({ key }) => key === event.key);
      if (page) void navigate({ to: page.to });
      event.preventDefault();
      event.stopPropagation();
    };
    window.addEventListener("keydown", pair, { capture: true });
    window.addEventListener("keydown", press);
    return () => {
      window.removeEventListener("keydown", pair, { capture: true });
      window.removeEventListener("keydown", press);
    };
  }, [navigate, onOpen, pages]);
}

/** Focus the next or previous row of the page's lists: the link that is its name. */
function step(by: 1 | -1): void {
  const rows = [...document.querySelectorAll<HTMLElement>("main a.strong")];
  const at = rows.indexOf(document.activeElement as HTMLElement);
  const next = rows[at < 0 ? (by > 0 ? 0 : rows.length - 1) : at + by];
  next?.focus();
  next?.scrollIntoView({ block: "nearest" });
}

function Keys({ pages, onClose }: { pages: readonly PageEntry[]; onClose: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => dialog.current?.showModal(), []);
  return (
    <dialog ref={dialog} className="keys" onClose={onClose} aria-labelledby="keys-title">
      <div className="row between">
        <h2 id="keys-title">Keyboard shortcuts</h2>
        <button type="button" onClick={() => dialog.current?.close()}>
          Close
        </button>
      </div>
      <div className="keys-lists">
        <KeyList rows={KEYS} />
        <KeyList rows={pages.map(({ key, name }) => [[`g ${key}`], name])} />
      </div>
    </dialog>
  );
}

function KeyList({ rows }: { rows: readonly (readonly [readonly string[], string])[] }) {
  return (
    <dl>
      {rows.map(([keys, what]) => (
        <div key={what}>
          <dt>
            {keys.map((key) => (
              <kbd key={key}>{key}</kbd>
            ))}
          </dt>
          <dd>{what}</dd>
        </div>
      ))}
    </dl>
  );
}

interface Item {
  key: string;
  label: string;
  note: string;
  go: () => void;
}

function GoTo({ pages, onClose }: { pages: readonly PageEntry[]; onClose: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const navigate = useNavigate();
  const [typed, setTyped] = useState("");
  const [at, setAt] = useState(0);
  const words = typed.trim().toLowerCase();
  const runs = useInfiniteQuery({ ...tasksQuery({ q: typed.trim() || undefined }), enabled: words !== "" });
  useEffect(() => dialog.current?.showModal(), []);
  const found: Item[] = [
    ...pages
      .filter(({ name }) => name.toLowerCase().includes(words))
      .map(({ to, name, key }) => ({ key: to, label: name, note: `g ${key}`, go: () => void navigate({ to }) })),
    ...(words === "" ? [] : (runs.data?.pages[0]?.items ?? [])).slice(0, RUNS_SHOWN).map((task) => ({
      key: task.id,
      label: task.name,
      note: `${plain(task.status)} · ${task.id}`,
      go: () => void navigate({ to: "/tasks/$taskId", params: { taskId: task.id } }),
    })),
  ];
  const chosen = Math.max(0, Math.min(at, found.length - 1));
  const run = (item: Item | undefined) => {
    if (!item) return;
    onClose();
    item.go();
  };
  return (
    <dialog ref={dialog} className="palette" onClose={onClose} aria-label="Go to">
      <input
        role="combobox"
        aria-expanded="true"
        aria-controls="palette-items"
        aria-activedescendant={found[chosen] ? `palette-${chosen}` : undefined}
        aria-label="Page or run"
        placeholder="Page, or the name or id of a run"
        value={typed}
        onChange={(event) => {
          setTyped(event.target.value);
          setAt(0);
        }}
        onKeyDown={(event) => {
          if (event.key === "ArrowDown") setAt(Math.min(chosen + 1, found.length - 1));
          else if (event.key === "ArrowUp") setAt(Math.max(chosen - 1, 0));
          else if (event.key === "Enter") run(found[chosen]);
          else return;
          event.preventDefault();
        }}
      />
      <div id="palette-items" role="listbox" aria-label="Found" className="palette-items">
        {found.map((item, number) => (
          <div
            key={item.key}
            id={`palette-${number}`}
            role="option"
            tabIndex={-1}
            aria-selected={number === chosen}
            className="row between"
            onMouseMove={() => setAt(number)}
            onClick={() => run(item)}
            onKeyDown={() => undefined}
          >
            <span className="cut">{item.label}</span>
            <span className="muted small nowrap">{item.note}</span>
          </div>
        ))}
        {found.length === 0 && <p className="muted">{runs.isFetching ? "Searching …" : "Nothing found"}</p>}
      </div>
    </dialog>
  );
}
