/** Tags as removable chips, and an input that suggests the known ones. */
import { useQuery } from "@tanstack/react-query";
import { type KeyboardEvent, useId, useState } from "react";
import { taskCountsQuery } from "../api/queries";

/** As on the server. */
const MOST_CHARACTERS = 40;

export function TagInput({
  label,
  tags,
  onChange,
}: {
  label: string;
  tags: readonly string[];
  onChange: (to: string[]) => void;
}) {
  const id = useId();
  const [typed, setTyped] = useState("");
  const known = useQuery(taskCountsQuery({})).data?.tag ?? {};
  const add = (text: string) => {
    const fresh = text
      .split(",")
      .map((each) => each.trim())
      .filter(Boolean);
    if (fresh.length > 0) onChange([...new Set([...tags, ...fresh])]);
    setTyped("");
  };
  const press = (event: KeyboardEvent) => {
    if (event.key === "Enter" || event.key === ",") {
      if (typed.trim() || event.key === ",") event.preventDefault();
      add(typed);
    } else if (event.key === "Backspace" && !typed) onChange(tags.slice(0, -1));
  };
  return (
    <div className="tag-input">
      {tags.map((tag) => (
        <span key={tag} className="tag">
          {tag}
          <button
            type="button"
            className="quiet"
            aria-label={`Remove the tag ${tag}`}
            onClick={() => onChange(tags.filter((each) => each !== tag))}
          >
            ×
          </button>
        </span>
      ))}
      <input
        aria-label={label}
        placeholder={tags.length ? "" : "Type a tag, then Enter"}
        list={id}
        value={typed}
        maxLength={MOST_CHARACTERS}
        onChange={(event) => setTyped(event.target.value)}
        onKeyDown={press}
        onBlur={() => add(typed)}
      />
      <datalist id={id}>
        {Object.keys(known)
          .filter((tag) => !tags.includes(tag))
          .map((tag) => (
            <option key={tag} value={tag} />
          ))}
      </datalist>
    </div>
  );
}
