// The toolbar above the picture: the options that apply to this tensor.

import { type Against, type DisplayOptions, MODES, type Mode, type Part, type TensorInfo, axesFor, modesOf } from "./displayOptions";
import type { MapName } from "../color/colors";
import { choice, element } from "../page/elements";
import { CHANNELS, axesShown } from "./loader";
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

/** The modes that show the parts of a comparison beside each other. */
const BESIDE: readonly Mode[] = ["heat", "image", "line"];

export class Controls {
  readonly root = element("div", { className: "controls", role: "toolbar", label: "Display options" });

  constructor(private readonly changed: (options: DisplayOptions) => void) {}

  show(options: DisplayOptions, { dtype, shape }: TensorInfo, scale: [number, number] | undefined): void {
    const focused = (document.activeElement as HTMLElement | null)?.getAttribute("aria-label");
    const set = (some: Partial<DisplayOptions>) => this.changed({ ...options, ...some });
    const parts: Node[] = [];
    const modes = modesOf(dtype, shape).map((mode) => [mode, MODES[mode]] as const);
    parts.push(
      choice("View", modes, options.mode, (mode) => set({ mode: mode as Mode, window: undefined, ...axesFor(mode as Mode, shape) })),
    );
    parts.push(...this.axes(options, shape, set));
    if (options.mode !== "table" && options.mode !== "histogram" && shape.length) {
      parts.push(choice("Blocks", REDUCTIONS, options.reduce, (reduce) => set({ reduce: reduce as DisplayOptions["reduce"] })));
    }
    if (options.mode === "heat" || options.mode === "channels") {
      const maps = [["even", "viridis"], ["diverging", "blue to red"]] as const;
      parts.push(choice("Colors", maps, options.map, (map) => set({ map: map as MapName })));
    }
    if (options.mode !== "image" && options.mode !== "table") {
      const scales = [["linear", "linear"], ["log", "logarithmic"]] as const;
      parts.push(choice("Scale", scales, options.log ? "log" : "linear", (scale) => set({ log: scale === "log" })));
    }
    if (["heat", "channels", "image"].includes(options.mode)) {
      parts.push(...rangeControls(options, scale, set));
    }
    parts.push(...comparisonControls(options, set));
    this.root.replaceChildren(...parts);
    if (focused) {
      [...this.root.querySelectorAll<HTMLElement>("[aria-label]")].find((each) => each.getAttribute("aria-label") === focused)?.focus();
    }
  }

  private axes(options: DisplayOptions, shape: readonly number[], set: (some: Partial<DisplayOptions>) => void): Node[] {
    if (options.mode === "histogram") {
      return [];
    }
    const names = shape.map((size, axis) => [String(axis), `axis ${axis} (${size})`] as const);
    const line = options.mode === "line";
    const shown = line ? [options.columns] : axesShown(options);
    const parts: Node[] = [];
    const pick = (label: string, key: "rows" | "columns" | "channels") =>
      choice(label, names, String(options[key]), (value) => {
        const axis = Number(value);
        // Exchanges the axes.
        const other = (["rows", "columns", "channels"] as const).find((each) => each !== key && options[each] === axis);
        set({ window: undefined, [key]: axis, ...(other ? { [other]: options[key] } : {}) });
      });
    if (shape.length > 1) {
      if (!line) {
        parts.push(pick("Rows", "rows"));
      }
      parts.push(pick(line ? "Along" : "Columns", "columns"));
    }
    if (options.channels >= 0 && (options.mode === "image" || options.mode === "channels")) {
      parts.push(pick("Channels", "channels"));
    }
    shape.forEach((size, axis) => {
      const moved = options.mode === "channels" && axis === options.channels && size > CHANNELS;
      if (size > 1 && (!shown.includes(axis) || moved)) {
        parts.push(slider(axis, size, options.at[axis] ?? 0, (place) => set({ at: options.at.map((each, number) => (number === axis ? place : each)) })));
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

function rangeControls(options: DisplayOptions, scale: [number, number] | undefined, set: (some: Partial<DisplayOptions>) => void): Node[] {
  const kinds = [["auto", "automatic"], ["fixed", "fixed"]] as const;
  const parts: Node[] = [
    choice("Range", kinds, options.range ? "fixed" : "auto", (kind) => set({ range: kind === "fixed" ? (scale ?? [0, 1]) : undefined })),
  ];
  if (options.range) {
    options.range.forEach((end, number) => {
      const field = element("input", { type: "number", step: "any", value: String(Number(rounded(end))), label: number ? "Upper end" : "Lower end" });
      field.onchange = () => {
        const [low, high] = options.range as [number, number];
        set({ range: number ? [low, Number(field.value)] : [Number(field.value), high] });
      };
      parts.push(field);
    });
  }
  return parts;
}

function comparisonControls(options: DisplayOptions, set: (some: Partial<DisplayOptions>) => void): Node[] {
  const parts: Node[] = [choice("Compare with", AGAINST, options.against, (against) => set({ against: against as Against }))];
  if (options.against === "expression") {
    const field = element("input", { type: "text", value: options.other, placeholder: "%h", label: "Expression to compare with" });
    field.onchange = () => set({ other: field.value.trim() });
    parts.push(field);
  }
  if (options.against !== "nothing") {
    const parted = BESIDE.includes(options.mode) ? PARTS : PARTS.slice(1);
    parts.push(choice("Show", parted, partShown(options), (part) => set({ part: part as Part })));
  }
  return parts;
}

/** Whether the tensor is compared with another one. */
export function isCompared({ against, other }: DisplayOptions): boolean {
  return against !== "nothing" && (against !== "expression" || other !== "");
}

/** The part that a mode shows of a comparison. */
export function partShown(options: DisplayOptions): Part {
  const { part, mode } = options;
  if (!isCompared(options)) {
    return "here";
  }
  return part === "all" && !BESIDE.includes(mode) ? "difference" : part;
}
