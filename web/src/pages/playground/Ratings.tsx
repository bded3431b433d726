/** Rated answers: how many preference pairs they make, and a dataset of them. */
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { useState } from "react";
import { jsonLines, preferencesOf, type Rated } from "../../lib/preferences";
import { Confirm } from "../../parts/bits";
import { useSession } from "../../parts/session";
import { useStored } from "../../parts/stored";
import { toast } from "../../parts/toasts";
import { upload } from "../datasets/upload";

const NONE: Rated[] = [];

interface Stored {
  value: Rated[];
  set: (next: Rated[]) => void;
}

/** The ratings of a user, in this browser. */
export function useRatings(): Stored {
  const [value, set] = useStored("ratings", NONE, isRatings);
  return { value, set };
}

function isRatings(value: unknown): value is Rated[] {
  return Array.isArray(value) && value.every((each) => Array.isArray(each?.messages) && Array.isArray(each?.answers));
}

/** `model`: only the ratings of its answers. */
export function Ratings({ ratings, model }: { ratings: Stored; model?: string }) {
  const { mayChange } = useSession();
  const [naming, setNaming] = useState(false);
  const [clearing, setClearing] = useState(false);
  const [name, setName] = useState("");
  const mine = ratings.value.filter((each) => model === undefined || each.model === model);
  const rows = preferencesOf(mine);
  const answers = mine.flatMap((each) => each.answers).filter((each) => each.rating).length;
  const client = useQueryClient();
  const navigate = useNavigate();
  const save = useMutation({
    mutationFn: () => {
      const file = new File([jsonLines(rows)], `${name}.jsonl`);
      return upload(file, file.name, () => undefined, new AbortController().signal);
    },
    onSuccess: async (made) => {
      toast(`${made.name} saved`, "good", "Train on it with DPO or ORPO.");
      await client.invalidateQueries({ queryKey: ["datasets"] });
      void navigate({ to: "/datasets", search: { id: made.id } });
    },
  });
  if (answers === 0) return null;
  return (
    <div className="row between small ratings">
      <span className="muted num">
        {answers === 1 ? "1 rated answer" : `${answers} rated answers`} ·{" "}
        {rows.length === 1 ? "1 preference pair" : `${rows.length} preference pairs`}
      </span>
      <span className="row tight">
        <button type="button" onClick={() => setClearing(true)}>
          Clear
        </button>
        <button
          type="button"
          disabled={rows.length === 0 || !mayChange || save.isPending}
          title={
            rows.length === 0
              ? "A pair needs two different answers to one message: compare with the base model, or regenerate."
              : undefined
          }
          onClick={() => {
            setName(`${mine[0]?.model ?? "chat"}-preferences`.replace(/[^\w.-]+/g, "-"));
            setNaming(true);
          }}
        >
          Save as dataset
        </button>
      </span>
      {naming && (
        <Confirm
          title="Save as dataset"
          action="Save"
          allowed={/^[\w.-]+$/.test(name)}
          onDo={() => save.mutate()}
          onClose={() => setNaming(false)}
        >
          <div className="stack">
            <p>
              {rows.length === 1 ? "One row" : `${rows.length} rows`} with prompt, chosen and rejected answer, for DPO
              and ORPO.
            </p>
            <label className="field">
              <span className="muted small">Name</span>
              <input value={name} onChange={(event) => setName(event.target.value)} />
            </label>
          </div>
        </Confirm>
      )}
      {clearing && (
        <Confirm
          title="Clear the ratings?"
          action="Clear"
          danger
          onDo={() => ratings.set(ratings.value.filter((each) => !mine.some((one) => one.id === each.id)))}
          onClose={() => setClearing(false)}
        >
          Saved datasets are not affected.
        </Confirm>
      )}
    </div>
  );
}
