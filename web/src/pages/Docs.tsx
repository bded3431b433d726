/** The documentation of this version, without a connection to anywhere else. */
import { useQuery } from "@tanstack/react-query";
import { Link, useLocation, useNavigate, useParams } from "@tanstack/react-router";
import { type MouseEvent, useEffect } from "react";
import { Answer, Empty } from "../parts/states";
import { useTitle } from "../parts/title";
import "../styles/docs.css";

interface Document {
  title: string;
  html: string;
}

const ROOT = "../../../docs/";
const FIRST = "README";
const BASE = "/ui/docs/";
const DOCUMENTS = import.meta.glob<Document>(
  [
    "../../../docs/*.md",
    "../../../docs/{how-to,tutorial,explanation,reference}/*.md",
    "!../../../docs/benchmarks.md",
    "!../../../docs/reference/sdk.md",
  ],
  { import: "default" },
);

export function Docs() {
  const { _splat } = useParams({ from: "/docs/$" });
  const name = _splat || FIRST;
  const load = DOCUMENTS[`${ROOT}${name}.md`];
  return (
    <div className="page">
      {load ? (
        <Loaded key={name} name={name} load={load} />
      ) : (
        <Empty title="Page not found">
          <Link to="/docs/$" params={{ _splat: "" }}>
            All topics
          </Link>
        </Empty>
      )}
    </div>
  );
}

function Loaded({ name, load }: { name: string; load: () => Promise<Document> }) {
  const document = useQuery({
    queryKey: ["document", name],
    queryFn: load,
    staleTime: Number.POSITIVE_INFINITY,
  });
  return (
    <Answer query={document} rows={8}>
      {(found) => <Shown name={name} document={found} />}
    </Answer>
  );
}

function Shown({ name, document: { title, html } }: { name: string; document: Document }) {
  const { hash } = useLocation();
  const navigate = useNavigate();
  useTitle(title);
  useEffect(() => {
    if (hash) document.getElementById(hash)?.scrollIntoView();
  }, [hash]);
  const follow = (event: MouseEvent) => {
    const href = (event.target as Element).closest("a")?.getAttribute("href");
    if (!href?.startsWith(BASE) || event.metaKey || event.ctrlKey || event.shiftKey) return;
    event.preventDefault();
    const [page = "", anchor] = href.slice(BASE.length).split("#");
    void navigate({ to: "/docs/$", params: { _splat: page }, hash: anchor });
  };
  return (
    <>
      {name !== FIRST && (
        <nav aria-label="Documentation" className="small">
          <Link to="/docs/$" params={{ _splat: "" }}>
            All topics
          </Link>
        </nav>
      )}
      {/* biome-ignore lint/a11y/useKeyWithClickEvents: a key on a link is a click on it */}
      {/* biome-ignore lint/a11y/noStaticElementInteractions: only its links are clicked */}
      {/* biome-ignore lint/security/noDangerouslySetInnerHtml: built from this repository's documentation */}
      <div className="panel doc" onClick={follow} dangerouslySetInnerHTML={{ __html: html }} />
    </>
  );
}
