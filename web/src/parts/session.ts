/** Who is logged in, for whatever offers something to do. */
import { createContext, use } from "react";
import type { ServerInfo } from "../api/schema";

export interface Session {
  info: ServerInfo;
  /** Whether the role may submit and steer. */
  mayChange: boolean;
  isAdmin: boolean;
}

export const SessionContext = createContext<Session | null>(null);

export function useSession(): Session {
  const session = use(SessionContext);
  if (!session) throw new Error("useSession is for what stands inside the shell");
  return session;
}
