/** One answer of a model, with what can be done with it. */
import { lazyRouteComponent } from "@tanstack/react-router";
import { memo, Suspense, useState } from "react";
import { number } from "../../lib/format";
import type { Rating } from "../../lib/preferences";
import { useNow } from "../../parts/clock";
import { useCopy } from "../../parts/copying";
import { Icon } from "./icons";
import type { Said, Turn } from "./talk";

const Markdown = lazyRouteComponent(() => import("./Markdown"), "Markdown");

export interface AnswerActions {
  onAgain: (turn: Turn, model: string) => void;
  onShow: (turn: Turn, model: string, at: number) => void;
  onRate: (turn: Turn, model: string, rating: Rating | undefined) => void;
}

export const Answered = memo(function Answered({
  turn,
  model,
  name,
  said,
  markdown,
  mayAsk,
  isLast,
  onAgain,
  onShow,
  onRate,
}: AnswerActions & {
  turn: Turn;
  model: string;
  /** The model as people know it. */
  name: string;
  said: Said;
  markdown: boolean;
  mayAsk: boolean;
  isLast: boolean;
}) {
  const going = said.finish === undefined && said.error === undefined;
  const { shown, copied, copy } = useCopy<HTMLDivElement>(said.text);
  const count = turn.answers[model]?.length ?? 1;
  const at = turn.shown[model] ?? 0;
  const rate = (rating: Rating) => onRate(turn, model, said.rating === rating ? undefined : rating);
  return (
    <div className={`answer ${model}`}>
      <div className="small cut">
        <strong>{model === "base" ? "Base" : model === "tuned" ? "Tuned" : model}</strong>{" "}
        <span className="muted">{name}</span>
      </div>
      <div ref={shown} className={markdown ? "text" : "text plain"} data-model={model} aria-busy={going}>
        {markdown ? (
          <Suspense fallback={said.text}>
            <Markdown text={said.text} />
          </Suspense>
        ) : (
          said.text
        )}
        {going && <span className="caret" aria-hidden="true" />}
      </div>
      {going && !said.text && <Waiting reason={said.waiting} />}
      {said.finish && !said.text.trim() && <span className="muted small">Empty answer</span>}
      {said.error && (
        <div className="fault small" role="alert">
          {said.error}
        </div>
      )}
      {!going && (
        <div className="row between tight small">
          <span className="row tight answer-actions">
            {count > 1 && (
              <span className="row tight versions small num">
                <Button label="Previous answer" disabled={at === 0} onClick={() => onShow(turn, model, at - 1)}>
                  <Icon name="before" />
                </Button>
                {at + 1} / {count}
                <Button label="Next answer" disabled={at + 1 === count} onClick={() => onShow(turn, model, at + 1)}>
                  <Icon name="after" />
                </Button>
              </span>
            )}
            {isLast && (
              <Button label="Regenerate" disabled={!mayAsk} onClick={() => onAgain(turn, model)}>
                <Icon name="again" />
              </Button>
            )}
            {said.text && (
              <>
                <Button label={copied ? "Copied" : "Copy answer"} onClick={copy}>
                  <Icon name="copy" />
                </Button>
                <Button label="Good answer" pressed={said.rating === 1} onClick={() => rate(1)}>
                  <Icon name="up" />
                </Button>
                <Button label="Bad answer" pressed={said.rating === -1} onClick={() => rate(-1)}>
                  <Icon name="down" />
                </Button>
              </>
            )}
          </span>
          <span className="muted num">{footnote(said)}</span>
        </div>
      )}
    </div>
  );
});

/** The time until the first token: a model may have to be loaded first. */
function Waiting({ reason }: { reason?: string }) {
  const now = useNow();
  const [since] = useState(now);
  const seconds = Math.round((now - since) / 1000);
  return (
    <div className="muted small num">
      {reason ?? "Waiting for the first token …"} {seconds > 0 && `${seconds} s`}
    </div>
  );
}

function Button({
  label,
  pressed,
  disabled,
  onClick,
  children,
}: {
  label: string;
  pressed?: boolean;
  disabled?: boolean;
  onClick: () => void;
  children: React.ReactNode;
}) {
  return (
    <button
      type="button"
      className="quiet"
      aria-label={label}
      title={label}
      aria-pressed={pressed}
      disabled={disabled}
      onClick={onClick}
    >
      {children}
    </button>
  );
}

/** A speed over fewer tokens says nothing. */
const FEWEST_TOKENS = 5;

function footnote({ finish, tokens, seconds, writing_s }: Said): string {
  const parts = [];
  if (tokens !== undefined) parts.push(tokens === 1 ? "1 token" : `${number(tokens)} tokens`);
  if (tokens !== undefined && tokens >= FEWEST_TOKENS && writing_s)
    parts.push(`${number(Math.round((tokens - 1) / writing_s))} tokens/s`);
  if (seconds !== undefined) parts.push(`${seconds.toFixed(1)} s`);
  if (finish === "length") parts.push("max tokens reached");
  if (finish === "stopped") parts.push("stopped");
  return parts.join(" · ");
}
