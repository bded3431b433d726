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

/** Whether one may steer and remove what belongs to somebody: its owner, and administrators. As the server decides. */
export function maySteer({ info, mayChange, isAdmin }: Session, owner: string): boolean {
  return isAdmin || (mayChange && info.owner === owner);
}

export function useMaySteer({ owner }: { owner: string }): boolean {
  return maySteer(useSession(), owner);
}
