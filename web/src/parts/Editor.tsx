/** Editor for workflow files: highlighting, schema completion, inline errors. */
import { autocompletion, type CompletionContext, type CompletionResult } from "@codemirror/autocomplete";
import { yaml } from "@codemirror/lang-yaml";
import { HighlightStyle, syntaxHighlighting } from "@codemirror/language";
import { type Diagnostic, lintGutter, setDiagnostics } from "@codemirror/lint";
import { EditorState } from "@codemirror/state";
import { EditorView } from "@codemirror/view";
import { tags } from "@lezer/highlight";
import { basicSetup } from "codemirror";
import { useEffect, useRef } from "react";
import type { FaultView } from "../api/schema";
import { fieldsAt, placeAt, type SchemaNode, valuesAt } from "../lib/schema";

const colors = HighlightStyle.define([
  { tag: [tags.propertyName, tags.definition(tags.propertyName)], color: "var(--accent)" },
  { tag: [tags.string, tags.content], color: "var(--text)" },
  { tag: tags.comment, color: "var(--muted)" },
  { tag: [tags.number, tags.bool, tags.null, tags.keyword], color: "var(--good)" },
]);

const look = EditorView.theme({
  "&": { backgroundColor: "var(--surface)", color: "var(--text)" },
  "&.cm-focused": { outline: "none" },
  ".cm-content": { fontFamily: "var(--mono)", caretColor: "var(--text)" },
  ".cm-cursor": { borderLeftColor: "var(--text)" },
  ".cm-gutters": { backgroundColor: "var(--surface)", color: "var(--muted)", border: "0" },
  ".cm-activeLine, .cm-activeLineGutter": { backgroundColor: "var(--sunken)" },
  "&.cm-focused .cm-selectionBackground, .cm-selectionBackground": { backgroundColor: "var(--accent-soft) !important" },
  ".cm-tooltip": { backgroundColor: "var(--surface)", color: "var(--text)", border: "1px solid var(--line-strong)" },
  ".cm-tooltip-autocomplete ul li[aria-selected]": { backgroundColor: "var(--accent-soft)", color: "var(--text)" },
  ".cm-completionDetail": { color: "var(--muted)", fontStyle: "normal" },
  ".cm-panels": { backgroundColor: "var(--sunken)", color: "var(--text)" },
});

export default function Editor({
  text,
  onChange,
  faults,
  schema,
}: {
  text: string;
  onChange: (text: string) => void;
  faults: readonly FaultView[];
  schema: SchemaNode | undefined;
}) {
  const box = useRef<HTMLDivElement>(null);
  const view = useRef<EditorView>(null);
  const tell = useRef(onChange);
  tell.current = onChange;
  const known = useRef(schema);
  known.current = schema;
  const first = useRef(text);

  useEffect(() => {
    if (!box.current) return;
    const made = new EditorView({
      parent: box.current,
      state: EditorState.create({
        doc: first.current,
        extensions: [
          basicSetup,
          yaml(),
          syntaxHighlighting(colors),
          look,
          lintGutter(),
          autocompletion({ override: [(context) => complete(context, known.current)], icons: false }),
          EditorView.contentAttributes.of({ "aria-label": "Workflow file", tabindex: "0" }),
          EditorView.updateListener.of((update) => {
            if (update.docChanged) tell.current(update.state.doc.toString());
          }),
        ],
      }),
    });
    view.current = made;
    return () => {
      made.destroy();
      view.current = null;
    };
  }, []);

  useEffect(() => {
    const editor = view.current;
    if (editor && editor.state.doc.toString() !== text)
      editor.dispatch({ changes: { from: 0, to: editor.state.doc.length, insert: text } });
  }, [text]);

  useEffect(() => {
    const editor = view.current;
    if (editor) editor.dispatch(setDiagnostics(editor.state, diagnostics(editor.state, faults)));
  }, [faults]);

  return <div className="code" ref={box} />;
}

function diagnostics(state: EditorState, faults: readonly FaultView[]): Diagnostic[] {
  return faults.map((fault) => {
    const line = state.doc.line(Math.min(Math.max(fault.line ?? 1, 1), state.doc.lines));
    const from = Math.min(line.from + Math.max((fault.column ?? 1) - 1, 0), line.to);
    const message = fault.hint ? `${fault.message} ${fault.hint}` : fault.message;
    return { from, to: Math.max(line.to, from), severity: "error", message };
  });
}

function complete(context: CompletionContext, schema: SchemaNode | undefined): CompletionResult | null {
  if (!schema) return null;
  const place = placeAt(context.state.doc.toString(), context.pos);
  if (!place.typed && !context.explicit && place.key === null) return null;
  const from = context.pos - place.typed.length;
  if (place.key !== null) {
    const options = valuesAt(schema, place).map((label) => ({ label }));
    return options.length ? { from, options } : null;
  }
  const options = fieldsAt(schema, place).map(({ name, about }) => ({
    label: name,
    apply: `${name}: `,
    info: about || undefined,
  }));
  return options.length ? { from, options } : null;
}
