// The form "Run with": one row for each input, then sizes, backend, allocator and seed.

import { type Choices, type Field, fieldOf, type FromForm, GENERATED, type Model, inputText, type ToForm } from "../../runForm/fields";
import { button, element } from "../page/elements";
import { Host } from "../page/host";
import "./style.css";

const host = new Host<ToForm, FromForm>({});

const KINDS: [Field["kind"], string][] = [
  ["", "drawn at random"],
  ["file", "file"],
  ["value", "number or list"],
  ...GENERATED.map((kind): [Field["kind"], string] => [kind, kind]),
];

const HINTS: Partial<Record<Field["kind"], string>> = { file: "x.npy, batch.npz:key or photo.png:/255,resize", value: "16000 or [[0.5, nan]]" };
const SIZES = "sizes, if different from the type: 1,512";

interface InputRow {
  select: HTMLSelectElement;
  detail: HTMLInputElement;
  update(): void;
}

let rows = new Map<string, InputRow>();

function show(model: Model, choices: Choices, error: string): void {
  rows = new Map();
  const sizes = new Map<string, HTMLInputElement>();
  // The configuration may name the backend of an installed package.
  const backend = select("Backend", new Set([...model.backends, choices.backend].filter(Boolean)), choices.backend);
  const allocator = select("Allocator", model.allocators, choices.allocator ?? "");
  const seed = number("Seed", choices.seed, "0");
  const entered = (): Choices => ({
    inputs: Object.fromEntries([...rows].map(([name, row]) => [name, inputText(fieldIn(row))])),
    dims: Object.fromEntries([...sizes].map(([name, field]) => [name, field.value])),
    backend: backend.value,
    allocator: allocator.value,
    seed: seed.value,
  });
  const form = element(
    "form",
    {},
    element("h1", {}, `Run ${model.title} with`),
    ...(error ? [element("p", { className: "words", role: "alert" }, error)] : []),
    ...group("Inputs", model.inputs.map(({ name, type }) => inputRow(name, type, choices.inputs[name] ?? ""))),
    ...group("Sizes", model.dims.map((name) => {
      const field = number(`Size ${name}`, choices.dims[name] ?? "", "chosen");
      sizes.set(name, field);
      return row(name, field);
    })),
    ...group("Run", [row("backend", backend), row("allocator", allocator), row("seed", seed)]),
    element(
      "div",
      { className: "actions" },
      element("button", { type: "submit", className: "start" }, "Start Debugging"),
      button("Save as launch.json", "Add this run to the launch.json of the workspace", () => host.send({ kind: "save", choices: entered() })),
    ),
  );
  form.onsubmit = (event) => {
    event.preventDefault();
    host.send({ kind: "start", choices: entered() });
  };
  document.querySelector("form")?.remove();
  document.body.append(form);
  form.querySelector<HTMLElement>("select, input")?.focus();
}

function group(title: string, members: HTMLElement[]): HTMLElement[] {
  return members.length ? [element("h2", {}, title), ...members] : [];
}

function select(label: string, names: Iterable<string>, chosen: string): HTMLSelectElement {
  const options = [["", "default"], ...[...names].map((name) => [name, name])] as const;
  const created = element("select", { label });
  created.append(...options.map(([value, text]) => element("option", { value, selected: value === chosen }, text)));
  return created;
}

function row(name: string, ...fields: HTMLElement[]): HTMLElement {
  return element("div", { className: "row" }, element("span", { className: "name", title: name }, name), ...fields);
}

function number(label: string, value: string, placeholder: string): HTMLInputElement {
  return element("input", { label, value, placeholder, inputMode: "numeric", spellcheck: false });
}

function inputRow(name: string, type: string | null, text: string): HTMLElement {
  const field = fieldOf(text);
  const kind = element("select", { label: `Data for ${name}` });
  kind.append(...KINDS.map(([value, label]) => element("option", { value, selected: value === field.kind }, label)));
  const detail = element("input", { label: `Details for ${name}`, value: field.detail, spellcheck: false });
  const choose = button("Choose File …", `Choose a file for ${name}`, () => host.send({ kind: "chooseFile", input: name }));
  const update = () => {
    const chosen = kind.value as Field["kind"];
    detail.hidden = !chosen;
    detail.placeholder = HINTS[chosen] ?? SIZES;
    choose.hidden = chosen !== "file";
  };
  kind.onchange = () => {
    detail.value = "";
    update();
  };
  update();
  rows.set(name, { select: kind, detail, update });
  const shownType = element("span", { className: "type" }, type ?? "type unknown");
  return row(`%${name}`, shownType, element("span", { className: "data" }, kind, detail, choose));
}

function fieldIn({ select, detail }: InputRow): Field {
  return { kind: select.value as Field["kind"], detail: detail.value };
}

function fillFile(name: string, file: string): void {
  const chosen = rows.get(name);
  if (chosen) {
    chosen.select.value = "file";
    chosen.detail.value = file;
    chosen.update();
  }
}

host.receive({
  show: ({ model, choices, error }) => show(model, choices, error),
  file: ({ input, file }) => fillFile(input, file),
});
host.send({ kind: "ready" });
