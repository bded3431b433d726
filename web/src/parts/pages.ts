/** The pages of the navigation, with their icons and the key that opens each after `g`. */
import {
  BookOpen,
  Boxes,
  Database,
  FilePlus2,
  House,
  List,
  type LucideIcon,
  MessageSquare,
  Package,
  RefreshCw,
  Server,
  Settings,
  SlidersHorizontal,
  Sparkles,
} from "lucide-react";

export const PAGES = [
  { to: "/", name: "Overview", key: "o", icon: House, group: "" },
  { to: "/tasks", name: "Runs", key: "r", icon: List, group: "" },
  { to: "/train", name: "Fine-tune", key: "f", icon: Sparkles, group: "", changes: true },
  { to: "/new", name: "New workflow", key: "n", icon: FilePlus2, group: "", changes: true },
  { to: "/datasets", name: "Datasets", key: "d", icon: Database, group: "Data and models" },
  { to: "/models", name: "Models", key: "m", icon: Package, group: "Data and models" },
  { to: "/playground", name: "Playground", key: "p", icon: MessageSquare, group: "Data and models" },
  { to: "/sweeps", name: "Sweeps", key: "t", icon: SlidersHorizontal, group: "Long-running" },
  { to: "/federations", name: "Federations", key: "e", icon: Boxes, group: "Long-running" },
  { to: "/campaigns", name: "Campaigns", key: "c", icon: RefreshCw, group: "Long-running" },
  { to: "/workers", name: "Workers", key: "w", icon: Server, group: "Server" },
  { to: "/settings", name: "Settings", key: "s", icon: Settings, group: "Server" },
  { to: "/docs/$", name: "Docs", key: "h", icon: BookOpen, group: "Server" },
] as const satisfies readonly {
  to: string;
  name: string;
  key: string;
  icon: LucideIcon;
  group: string;
  /** Only for users who may submit runs. */
  changes?: true;
}[];

export type PageEntry = (typeof PAGES)[number];

/** The pages that a user may open. */
export function pagesFor(mayChange: boolean): PageEntry[] {
  return PAGES.filter((page) => mayChange || !("changes" in page));
}
