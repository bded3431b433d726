/** Choose a model to chat with: fine-tuned, any other model, or an active chat. */
import { useMutation, useQuery } from "@tanstack/react-query";
import { Link, useNavigate } from "@tanstack/react-router";
import { type FormEvent, useState } from "react";
import { api, ask } from "../../api/client";
import { taskQuery } from "../../api/queries";
import { chatsQuery, trainedQuery } from "../../api/queries_data";
import { Panel, Status, TaskLink, Time } from "../../parts/bits";
import { Answer, Empty } from "../../parts/states";
import { type ChatStart, chatWithModel, chatWithTask } from "./document";

const IDLE_S = 600;
type Template = "" | "true" | "false";

export function Begin({ task }: { task?: string }) {
  const navigate = useNavigate();
  const trained = useQuery(trainedQuery);
  const chats = useQuery(chatsQuery);
  const [model, setModel] = useState("");
  const [chosen, setChosen] = useState(task ?? "");
  const [template, setTemplate] = useState<Template>("");
  const listed = trained.data ?? [];
  const named = chosen || listed[0]?.id || "";
  const about = useQuery({ ...taskQuery(named), enabled: named !== "" });
  const options = { chat_template: template === "" ? null : template === "true", idle_s: IDLE_S };
  const begin = useMutation({
    mutationFn: async ({ document, inputs }: ChatStart) =>
      ask(api.POST("/api/v1/workflows", { body: { document, filename: null, inputs, strict: false } })),
    onSuccess: (made) => void navigate({ to: "/playground", search: { task: made.tasks[0]?.id } }),
  });
  const withTask = useMutation({
    mutationFn: async () => {
      if (about.data) await begin.mutateAsync(chatWithTask(about.data, options));
    },
  });
  const withModel = (event: FormEvent) => {
    event.preventDefault();
    begin.mutate(chatWithModel(model.trim(), options));
  };
  const busy = begin.isPending || withTask.isPending;
  return (
    <div className="stack">
      <div className="begin">
        <Panel title="Fine-tuned models">
          <Answer query={trained} rows={2}>
            {(items) =>
              items.length === 0 && !task ? (
                <Empty title="No fine-tuned models yet">
                  <Link to="/new">Start a fine-tune</Link>
                </Empty>
              ) : (
                <div className="stack">
                  <label className="field">
                    <span className="muted small">Run</span>
                    <select value={named} onChange={(event) => setChosen(event.target.value)}>
                      {named && !items.some((each) => each.id === named) && (
                        <option value={named}>{about.data?.name ?? named}</option>
                      )}
                      {items.map((each) => (
                        <option key={each.id} value={each.id}>
                          {each.name} · {each.kind} · {each.id}
                        </option>
                      ))}
                    </select>
                  </label>
                  <div className="row between">
                    <span className="muted small">
                      {about.data && (
                        <>
                          <TaskLink id={about.data.id} name={about.data.name} /> {about.data.kind}
                          {about.data.finished_at && (
                            <>
                              , <Time at={about.data.finished_at} relative />
                            </>
                          )}
                        </>
                      )}
                    </span>
                    <button
                      type="button"
                      className="primary"
                      disabled={!about.data || busy}
                      onClick={() => withTask.mutate()}
                    >
                      Chat
                    </button>
                  </div>
                </div>
              )
            }
          </Answer>
        </Panel>
        <Panel title="Other model">
          <form className="stack" onSubmit={withModel}>
            <label className="field">
              <span className="muted small">Hub id or built-in model</span>
              <input
                value={model}
                required
                placeholder="builtin:gsm8k-llama-2m"
                onChange={(event) => setModel(event.target.value)}
              />
            </label>
            <div className="row end">
              <button type="submit" disabled={busy}>
                Start chat
              </button>
            </div>
          </form>
        </Panel>
      </div>
      <label className="row tight small">
        <span className="muted">Chat template</span>
        <select value={template} onChange={(event) => setTemplate(event.target.value as Template)}>
          <option value="">Model default</option>
          <option value="true">On</option>
          <option value="false">Off (plain text)</option>
        </select>
      </label>
      {!!chats.data?.length && (
        <Panel title="Active chats" flush>
          <table>
            <tbody>
              {chats.data.map((each) => (
                <tr key={each.id}>
                  <td>
                    <Link to="/playground" search={{ task: each.id }} className="strong">
                      {each.name}
                    </Link>
                  </td>
                  <td>
                    <Status status={each.status} />
                  </td>
                  <td className="muted hide-phone">{each.worker_id}</td>
                  <td className="muted nowrap">
                    <Time at={each.created_at} relative />
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </Panel>
      )}
    </div>
  );
}
