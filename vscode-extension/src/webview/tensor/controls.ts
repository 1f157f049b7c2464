// The row of choices above the picture: only those that mean something for this tensor.

import { Against, Choices, Known, MODES, Mode, Part, axesFor, modesOf } from "./choices";
import type { MapName } from "../color/colors";
import { choice, element } from "../page/elements";
import { CHANNELS, axesShown } from "./loading";
import { rounded } from "../page/numbers";

const REDUCTIONS = [
  ["absmax", "farthest from zero"],
  ["mean", "mean"],
  ["min", "smallest"],
  ["max", "largest"],
  ["stride", "every n-th element"],
] as const;

const AGAINST: readonly (readonly [Against, string])[] = [
  ["nothing", "nothing"],
  ["previous", "previous iteration"],
  ["branch", "other branch"],
  ["expression", "expression …"],
];

const PARTS: readonly (readonly [Part, string])[] = [
  ["all", "side by side"],
  ["here", "this value"],
  ["there", "other value"],
  ["difference", "difference"],
];

/** Modes that show the parts of a comparison beside each other. */
const BESIDE: readonly Mode[] = ["heat", "image", "line"];

export class Controls {
  readonly root = element("div", { className: "controls", role: "toolbar", label: "Display options" });

  constructor(private readonly changed: (choices: Choices) => void) {}

  show(choices: Choices, { dtype, shape }: Known, scale: [number, number] | undefined): void {
    const focused = (document.activeElement as HTMLElement | null)?.getAttribute("aria-label");
    const set = (some: Partial<Choices>) => this.changed({ ...choices, ...some });
    const parts: Node[] = [];
    const modes = modesOf(dtype, shape).map((mode) => [mode, MODES[mode]] as const);
    parts.push(
      choice("View", modes, choices.mode, (mode) => set({ mode: mode as Mode, window: undefined, ...axesFor(mode as Mode, shape) })),
    );
    parts.push(...this.axes(choices, shape, set));
    if (choices.mode !== "table" && choices.mode !== "histogram" && shape.length) {
      parts.push(choice("Blocks", REDUCTIONS, choices.reduce, (reduce) => set({ reduce: reduce as Choices["reduce"] })));
    }
    if (choices.mode === "heat" || choices.mode === "channels") {
      const maps = [["even", "viridis"], ["diverging", "blue to red"]] as const;
      parts.push(choice("Colors", maps, choices.map, (map) => set({ map: map as MapName })));
    }
    if (choices.mode !== "image" && choices.mode !== "table") {
      const scales = [["linear", "linear"], ["log", "logarithmic"]] as const;
      parts.push(choice("Scale", scales, choices.log ? "log" : "linear", (scale) => set({ log: scale === "log" })));
    }
    if (["heat", "channels", "image"].includes(choices.mode)) {
      parts.push(...rangeControls(choices, scale, set));
    }
    parts.push(...comparing(choices, set));
    this.root.replaceChildren(...parts);
    if (focused) {
      [...this.root.querySelectorAll<HTMLElement>("[aria-label]")].find((each) => each.getAttribute("aria-label") === focused)?.focus();
    }
  }

  private axes(choices: Choices, shape: readonly number[], set: (some: Partial<Choices>) => void): Node[] {
    if (choices.mode === "histogram") {
      return [];
    }
    const names = shape.map((size, axis) => [String(axis), `axis ${axis} (${size})`] as const);
    const line = choices.mode === "line";
    const shown = line ? [choices.columns] : axesShown(choices);
    const parts: Node[] = [];
    const pick = (label: string, key: "rows" | "columns" | "channels") =>
      choice(label, names, String(choices[key]), (value) => {
        const axis = Number(value);
        // What had this axis takes the one that is given up.
        const other = (["rows", "columns", "channels"] as const).find((each) => each !== key && choices[each] === axis);
        set({ window: undefined, [key]: axis, ...(other ? { [other]: choices[key] } : {}) });
      });
    if (shape.length > 1) {
      if (!line) {
        parts.push(pick("Rows", "rows"));
      }
      parts.push(pick(line ? "Along" : "Columns", "columns"));
    }
    if (choices.channels >= 0 && (choices.mode === "image" || choices.mode === "channels")) {
      parts.push(pick("Channels", "channels"));
    }
    shape.forEach((size, axis) => {
      const moved = choices.mode === "channels" && axis === choices.channels && size > CHANNELS;
      if (size > 1 && (!shown.includes(axis) || moved)) {
        parts.push(slider(axis, size, choices.at[axis] ?? 0, (place) => set({ at: choices.at.map((each, number) => (number === axis ? place : each)) })));
      }
    });
    return parts;
  }
}

function slider(axis: number, size: number, place: number, moved: (place: number) => void): HTMLLabelElement {
  const bar = element("input", { type: "range", min: "0", max: String(size - 1), value: String(place), label: `Index of axis ${axis}` });
  const field = element("input", { type: "number", min: "0", max: String(size - 1), value: String(place), label: `Index of axis ${axis} as a number` });
  const go = (text: string) => moved(Math.max(0, Math.min(size - 1, Math.round(Number(text)) || 0)));
  bar.oninput = () => (field.value = bar.value);
  bar.onchange = () => go(bar.value);
  field.onchange = () => go(field.value);
  return element("label", { className: "slider" }, `axis ${axis} `, bar, field);
}

function rangeControls(choices: Choices, scale: [number, number] | undefined, set: (some: Partial<Choices>) => void): Node[] {
  const kinds = [["auto", "automatic"], ["fixed", "fixed"]] as const;
  const parts: Node[] = [
    choice("Range", kinds, choices.range ? "fixed" : "auto", (kind) => set({ range: kind === "fixed" ? (scale ?? [0, 1]) : undefined })),
  ];
  if (choices.range) {
    choices.range.forEach((end, number) => {
      const field = element("input", { type: "number", step: "any", value: String(Number(rounded(end))), label: number ? "Upper end" : "Lower end" });
      field.onchange = () => {
        const [low, high] = choices.range as [number, number];
        set({ range: number ? [low, Number(field.value)] : [Number(field.value), high] });
      };
      parts.push(field);
    });
  }
  return parts;
}

function comparing(choices: Choices, set: (some: Partial<Choices>) => void): Node[] {
  const parts: Node[] = [choice("Compare with", AGAINST, choices.against, (against) => set({ against: against as Against }))];
  if (choices.against === "expression") {
    const field = element("input", { type: "text", value: choices.other, placeholder: "%h", label: "Expression to compare with" });
    field.onchange = () => set({ other: field.value.trim() });
    parts.push(field);
  }
  if (choices.against !== "nothing") {
    const parted = BESIDE.includes(choices.mode) ? PARTS : PARTS.slice(1);
    parts.push(choice("Show", parted, partShown(choices), (part) => set({ part: part as Part })));
  }
  return parts;
}

/** Whether there is something that the tensor is compared with. */
export function compared({ against, other }: Choices): boolean {
  return against !== "nothing" && (against !== "expression" || other !== "");
}

/** The part that a mode shows of a comparison. */
export function partShown(choices: Choices): Part {
  const { part, mode } = choices;
  if (!compared(choices)) {
    return "here";
  }
  return part === "all" && !BESIDE.includes(mode) ? "difference" : part;
}
