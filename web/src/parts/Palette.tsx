/** Command palette (Ctrl+K or ⌘K) and keys: pages, actions, and runs by name or id. */
import { useInfiniteQuery } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { useEffect, useRef, useState } from "react";
import { tasksQuery } from "../api/queries";
import { plain } from "../lib/words";

const PAGES = [
  ["/", "Overview", "o"],
  ["/tasks", "Runs", "r"],
  ["/train", "Fine-tune", "f"],
  ["/new", "New run from an example", "n"],
  ["/datasets", "Datasets", "d"],
  ["/playground", "Playground", "p"],
  ["/federations", "Federations", ""],
  ["/campaigns", "Campaigns", "c"],
  ["/workers", "Workers", "w"],
  ["/settings", "Settings", "s"],
] as const;
/** How long the second key of `g r` may take. */
const CHORD_MS = 1200;
const RUNS_SHOWN = 8;

export function Palette() {
  const [open, setOpen] = useState(false);
  useKeys(() => setOpen(true));
  return open ? <Dialog onClose={() => setOpen(false)} /> : null;
}

/** Ctrl+K anywhere; `/` and `g` with a letter outside of inputs. */
function useKeys(onOpen: () => void): void {
  const navigate = useNavigate();
  const chord = useRef(0);
  useEffect(() => {
    const press = (event: KeyboardEvent) => {
      if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
        event.preventDefault();
        onOpen();
        return;
      }
      if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
      if (Date.now() - chord.current < CHORD_MS) {
        chord.current = 0;
        const page = PAGES.find(([, , key]) => key !== "" && key === event.key);
        if (page) void navigate({ to: page[0] });
      } else if (event.key === "g") chord.current = Date.now();
      else if (event.key === "/") {
        const search = document.querySelector<HTMLInputElement>("main input[type=search]");
        if (!search) return;
        event.preventDefault();
        search.focus();
      }
    };
    window.addEventListener("keydown", press);
    return () => window.removeEventListener("keydown", press);
  }, [navigate, onOpen]);
}

function isTyping(target: EventTarget | null): boolean {
  return (
    target instanceof HTMLElement &&
    (target.isContentEditable || target.closest("input, select, textarea, dialog, .cm-editor") !== null)
  );
}

interface Item {
  key: string;
  label: string;
  note: string;
  go: () => void;
}

function Dialog({ onClose }: { onClose: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const navigate = useNavigate();
  const [typed, setTyped] = useState("");
  const [at, setAt] = useState(0);
  const words = typed.trim().toLowerCase();
  const runs = useInfiniteQuery({ ...tasksQuery({ q: typed.trim() || undefined }), enabled: words !== "" });
  useEffect(() => dialog.current?.showModal(), []);
  const found: Item[] = [
    ...PAGES.filter(([, name]) => name.toLowerCase().includes(words)).map(([to, name, key]) => ({
      key: to,
      label: name,
      note: key && `g ${key}`,
      go: () => void navigate({ to }),
    })),
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
