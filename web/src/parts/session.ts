/** The logged-in user, for permission checks. */
import { createContext, use } from "react";
import type { ServerInfo } from "../api/schema";

export interface Session {
  info: ServerInfo;
  /** Whether the role may submit and control tasks. */
  mayChange: boolean;
  isAdmin: boolean;
}

export const SessionContext = createContext<Session | null>(null);

export function useSession(): Session {
  const session = use(SessionContext);
  if (!session) throw new Error("useSession requires the shell");
  return session;
}

/** Whether the user may control and remove an object: its owner and administrators, as on the server. */
export function maySteer({ info, mayChange, isAdmin }: Session, owner: string): boolean {
  return isAdmin || (mayChange && info.owner === owner);
}

export function useMaySteer({ owner }: { owner: string }): boolean {
  return maySteer(useSession(), owner);
}
