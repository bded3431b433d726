/** Fine-tune wizard: model, data, method, review. The workflow file is the only state; the YAML drawer edits it too. */
import { useQuery } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { Suspense, useEffect, useMemo, useRef, useState } from "react";
import { stringify } from "yaml";
import { artifactQuery, taskQuery } from "../api/queries";
import { lookQuery, schemaQuery } from "../api/queries_data";
import { modelsQuery } from "../api/queries_models";
import type { Submitted } from "../lib/along";
import { changed } from "../lib/common";
import {
  type Adapter,
  type Choice,
  type Data,
  documentOf,
  type Method,
  type ModelChoice,
  methodsFor,
  nameOf,
  type Preset,
  planOf,
  presetOf,
  rebuilt,
} from "../lib/finetune";
import type { SchemaNode } from "../lib/schema";
import { DocsLink } from "../parts/bits";
import { useKept } from "../parts/kept";
import { lazyPage } from "../parts/lazy";
import { useSession } from "../parts/session";
import { Empty, Loading } from "../parts/states";
import "../styles/datasets.css";
import "../styles/new.css";
import "../styles/train.css";
import { useCheck } from "./new/check";
import { Memory } from "./new/Memory";
import { useSubmission } from "./new/submission";
import { type DataChoice, DataStep } from "./train/Data";
import { MethodStep } from "./train/Method";
import { BUILTIN, ModelStep } from "./train/Model";
import { ReviewStep, Summary } from "./train/Review";

const Editor = lazyPage(() => import("../parts/Editor"));

const STEPS = [
  ["model", "Model"],
  ["data", "Data"],
  ["method", "Method"],
  ["review", "Review"],
] as const;
type Step = (typeof STEPS)[number][0];

const FIRST_DATA: Data = {
  reference: "builtin:extraction",
  source: "path",
  keys: { messages_field: "messages" },
  split: "test",
  rows: 2000,
  characters: 250,
};
const FIRST: Choice = {
  name: "",
  model: BUILTIN.identifier,
  weights: BUILTIN.weights,
  data: FIRST_DATA,
  method: "sft",
  adapter: "lora",
  preset: "fast",
};

/** What a workflow file does not say: sizes for the presets, and the files that were uploaded for it. */
interface Known {
  model: ModelChoice;
  data: Data;
  kind: string | null;
  /** A run that is trained again, as it was submitted. */
  from?: Submitted;
}

interface Draft {
  text: string;
  known: Known;
}

const named = (choice: Choice): Choice => ({ ...choice, name: nameOf(choice.model, choice.data.reference) });
const FIRST_DRAFT: Draft = {
  text: documentOf(named(FIRST)),
  known: { model: BUILTIN, data: FIRST_DATA, kind: "messages" },
};

export function Train() {
  const { mayChange } = useSession();
  if (!mayChange)
    return (
      <div className="page">
        <Empty title="Your key is read-only">To start runs, use a key with the member or admin role.</Empty>
      </div>
    );
  return <Wizard />;
}

function Wizard() {
  const draft = useKept<Draft>("/train", FIRST_DRAFT);
  const { text, known } = draft.value;
  const [step, setStep] = useState<Step>("model");
  const [yaml, setYaml] = useState(false);
  const schema = useQuery(schemaQuery);
  const plan = planOf(text);
  const earlier = useEarlier(plan?.model, known);
  const check = useCheck(text, earlier);
  const weights = check.forecasts[0]?.memory?.weights ?? known.model.weights;
  const preset = plan ? presetOf(text, plan, known.model.weights) : null;
  const setText = (next: string) => draft.set((before) => ({ ...before, text: next }));
  const rebuild = (part: Partial<Choice>, next: Known, force: readonly string[] = []) => {
    const before: Choice = {
      name: "",
      model: known.model.identifier,
      weights: known.model.weights,
      data: known.data,
      method: plan?.method ?? "sft",
      adapter: plan?.adapter ?? "lora",
      preset: preset ?? "balanced",
      asChat: plan?.asChat ?? undefined,
    };
    // Another model has its own default for the chat template.
    const asChat = next.model === known.model ? before.asChat : undefined;
    const { model, data } = next;
    const after = named({ ...before, model: model.identifier, weights: model.weights, data, asChat, ...part });
    if (!plan) draft.set({ text: documentOf(after), known: next });
    else {
      // A name of the user's own stays.
      const name = plan.name === named(before).name ? after.name : plan.name;
      const changes = rebuilt(text, { ...before, name: plan.name }, { ...after, name }, force);
      draft.set({ text: changes, known: next });
    }
  };
  const chooseData = ({ data, kind }: DataChoice) => {
    if (plan?.data === data.reference && known.data.reference === data.reference) return;
    const methods = kind === null ? null : methodsFor(kind);
    const method = methods && plan && !methods.includes(plan.method) ? methods[0] : plan?.method;
    rebuild(method ? { method } : {}, { ...known, data, kind });
  };
  useDataOfAddress((choice) => {
    chooseData(choice);
    setStep("data");
  });
  useModelOfAddress((model) => rebuild({}, { ...known, model }));
  useTaskOfAddress((next) => {
    draft.set(next);
    setStep("review");
  });
  const submit = useSubmission(text, earlier, draft.forget);
  const at = STEPS.findIndex(([id]) => id === step);
  const next = STEPS[at + 1];
  const back = STEPS[at - 1];
  const ready = check.faults.length === 0 && !check.busy && !check.error;
  const memory = check.forecasts.find((each) => each.memory);
  return (
    <div className="page">
      <div className="row between">
        <h1>Fine-tune</h1>
        <div className="row tight">
          <DocsLink page="how-to/train-on-your-own-data" />
          <button type="button" aria-pressed={yaml} onClick={() => setYaml(!yaml)}>
            YAML
          </button>
          <Link to="/new" search={{}} className="button">
            From an example
          </Link>
        </div>
      </div>
      <ol className="wizard-steps" aria-label="Steps">
        {STEPS.map(([id, label], number) => (
          <li key={id}>
            <button type="button" aria-current={id === step ? "step" : undefined} onClick={() => setStep(id)}>
              <span className="num">{number + 1}</span> {label}
            </button>
          </li>
        ))}
      </ol>
      <div className={yaml ? "train with-yaml" : "train"}>
        <section className="panel" aria-label={STEPS[at]?.[1]}>
          <div className="body stack">
            {!plan && (
              <p className="note">
                The YAML is not a single fine-tuning task. Edit it in the drawer, or choose a model and data to start
                over.
              </p>
            )}
            {step === "model" && (
              <ModelStep
                chosen={plan?.model ?? ""}
                digest={known.model.digest}
                onChoose={(model) => rebuild({}, { ...known, model })}
              />
            )}
            {step === "data" && <DataStep chosen={plan?.data ?? ""} onChoose={chooseData} />}
            {step === "method" && plan && (
              <MethodStep
                plan={plan}
                kind={known.kind}
                preset={preset}
                text={text}
                faults={check.faults}
                onMethod={(method: Method, adapter: Adapter, wanted: Preset) =>
                  rebuild({ method, adapter, preset: wanted }, known, wanted === preset ? [] : ["training", "lora"])
                }
                onText={setText}
                onAsChat={(asChat) => rebuild({ asChat }, known)}
              />
            )}
            {step === "review" && plan && (
              <ReviewStep
                plan={plan}
                preset={preset}
                check={check}
                onName={(name) => setText(changed(text, ["metadata", "name"], name))}
              />
            )}
            <div className="row between">
              {back ? (
                <button type="button" onClick={() => setStep(back[0])}>
                  Back
                </button>
              ) : (
                <span />
              )}
              {next ? (
                <button type="button" className="primary" onClick={() => setStep(next[0])}>
                  Next: {next[1]}
                </button>
              ) : (
                <button
                  type="button"
                  className="primary"
                  disabled={!ready || submit.isPending}
                  title={ready ? undefined : "The workflow has errors, or is still being checked."}
                  onClick={() => submit.mutate()}
                >
                  {submit.isPending ? "Starting …" : "Start"}
                </button>
              )}
            </div>
          </div>
        </section>
        <div className="stack">
          {step !== "review" && plan && <Summary plan={plan} preset={preset} />}
          {memory && <Memory forecast={memory} />}
          {check.faults.length > 0 && step !== "review" && (
            <p className="note small">
              {check.faults.length === 1 ? "1 error" : `${check.faults.length} errors`}: {check.faults[0]?.message}
            </p>
          )}
          {draft.found && (
            <div className="row between small muted">
              <span>Draft restored.</span>
              <button type="button" onClick={() => draft.set(FIRST_DRAFT)}>
                Start over
              </button>
            </div>
          )}
          {weights == null && <p className="muted small">No memory estimate: the size of the model is unknown.</p>}
        </div>
        {yaml && (
          <aside className="drawer" aria-label="YAML">
            <Suspense fallback={<Loading rows={10} />}>
              <Editor
                text={text}
                onChange={setText}
                faults={check.faults}
                schema={schema.data as SchemaNode | undefined}
              />
            </Suspense>
          </aside>
        )}
      </div>
    </div>
  );
}

const MODEL = "model.source.identifier";

/** The files of the run, as `inputsOf` takes them: of a run that is trained again, and the chosen model. */
function useEarlier(model: string | undefined, known: Known): readonly Submitted[] {
  const models = useQuery(modelsQuery);
  const digest =
    known.model.identifier === model && known.model.digest
      ? known.model.digest
      : known.from
        ? undefined
        : models.data?.find((each) => `./${each.name}` === model)?.digest;
  return useMemo(() => {
    if (!digest) return known.from ? [known.from] : [];
    const spec = { ...(known.from?.spec as object), model: { source: { identifier: model } } };
    return [{ name: "", spec, inputs: { ...known.from?.inputs, [MODEL]: digest } }];
  }, [digest, model, known.from]);
}

/** `?from=ID`: a run to train again, with its uploaded model. */
function useTaskOfAddress(onTask: (draft: Draft) => void) {
  const { from: id } = useSearch({ from: "/train" });
  const navigate = useNavigate();
  const task = useQuery({ ...taskQuery(id ?? ""), enabled: id !== undefined });
  const done = useRef("");
  useEffect(() => {
    if (!id || done.current === id || !task.data) return;
    done.current = id;
    const { name, spec, resolved, inputs = {} } = task.data;
    const text = stringify({
      apiVersion: "tunefleet/v1",
      kind: "Workflow",
      metadata: { name },
      spec: resolved ?? spec,
    });
    const plan = planOf(text);
    const data: Data = { reference: plan?.data ?? "", source: plan?.source ?? "artifact", keys: {} };
    const model = { identifier: plan?.model ?? "", digest: inputs[MODEL] };
    onTask({ text, known: { model, data, kind: null, from: { name, spec: resolved ?? spec, inputs } } });
    // A reload keeps what is changed from here on.
    void navigate({ to: "/train", search: {}, replace: true });
  });
}

/** `?model=`: the model that the wizard was opened for: the id of an artifact, or the name of a base model. */
function useModelOfAddress(onModel: (model: ModelChoice) => void) {
  const { model: id } = useSearch({ from: "/train" });
  const navigate = useNavigate();
  const stored = id?.startsWith("art-");
  const digest = useQuery({ ...artifactQuery(id ?? ""), enabled: stored }).data?.digest;
  const models = useQuery(modelsQuery).data;
  const done = useRef("");
  useEffect(() => {
    if (!id || done.current === id) return;
    const model = models?.find((each) => each.digest === digest);
    if (stored && !model) return;
    done.current = id;
    onModel(
      model
        ? { identifier: `./${model.name}`, digest: model.digest }
        : { identifier: id, weights: id === BUILTIN.identifier ? BUILTIN.weights : undefined },
    );
    void navigate({ to: "/train", search: {}, replace: true });
  });
}

/** `?data=ID`: the dataset that the wizard was opened for. */
function useDataOfAddress(onData: (choice: DataChoice) => void) {
  const { data: id } = useSearch({ from: "/train" });
  const navigate = useNavigate();
  const artifact = useQuery({ ...artifactQuery(id ?? ""), enabled: id !== undefined });
  const look = useQuery({ ...lookQuery(id ?? ""), enabled: id !== undefined });
  const done = useRef("");
  useEffect(() => {
    if (!id || done.current === id || !artifact.data || !look.data?.use) return;
    done.current = id;
    const { rows, lengths, use, kind } = look.data;
    onData({
      data: { reference: id, source: "artifact", keys: use.data ?? {}, rows, characters: lengths?.p95 },
      kind: kind ?? null,
    });
    void navigate({ to: "/train", search: {}, replace: true });
  });
}
