/** Settings: keys, roles, notifications, storage and versions, according to the role. */
import { useLocation } from "@tanstack/react-router";
import { useEffect } from "react";
import { Keys } from "./settings/Keys";
import { Notifications } from "./settings/Notifications";
import { Roles } from "./settings/Roles";
import { Storage } from "./settings/Storage";
import { Versions } from "./settings/Versions";
import "../styles/settings.css";

export function Settings() {
  const { hash } = useLocation();
  // Sections are rendered before their data, so that links to them work.
  useEffect(() => {
    if (hash) document.getElementById(hash)?.scrollIntoView();
  }, [hash]);
  return (
    <div className="page">
      <h1>Settings</h1>
      <div className="settings">
        <div className="stack">
          <section id="keys">
            <Keys />
          </section>
          <section id="notifications">
            <Notifications />
          </section>
        </div>
        <div className="stack">
          <section id="storage">
            <Storage />
          </section>
          <section id="versions">
            <Versions />
          </section>
          <section id="roles">
            <Roles />
          </section>
        </div>
      </div>
    </div>
  );
}
