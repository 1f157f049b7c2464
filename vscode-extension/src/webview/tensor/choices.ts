// What a person has chosen to see of a tensor, and what is chosen where nobody has.

import type { Reduction } from "../../tensor/messages";
import type { MapName } from "../color/colors";
import { product } from "../page/numbers";

/** What is known of the tensor. */
export interface Known {
  type: string;
  dtype: string;
  shape: number[];
}

export type Mode = "heat" | "image" | "channels" | "line" | "table" | "histogram";
export type Against = "nothing" | "previous" | "branch" | "expression";
export type Part = "all" | "here" | "there" | "difference";

export interface Choices {
  mode: Mode;
  /** -1 where there is no such axis. */
  rows: number;
  columns: number;
  channels: number;
  /** Of each axis the place that is shown, where it is none of the three. */
  at: number[];
  /** The part of rows and columns that is zoomed into. */
  window: { rows: [number, number]; columns: [number, number] } | undefined;
  reduce: "stride" | Reduction;
  map: MapName;
  /** Whether colors, heights and counts are logarithmic. */
  log: boolean;
  range: [number, number] | undefined;
  against: Against;
  other: string;
  part: Part;
  bins: number;
  /** The row and the column of an element, counted in the whole tensor. */
  cursor: [number, number];
}

export const MODES: Record<Mode, string> = {
  heat: "Heat map",
  image: "Image",
  channels: "Channels",
  line: "Line",
  table: "Table",
  histogram: "Histogram",
};

/** Channels of an image. */
const COLORS = [1, 3, 4];
/** Sides from which something may be an image. */
const SIDE = 8;

/** The modes that a tensor can be seen in. */
export function modesOf(dtype: string, shape: readonly number[]): Mode[] {
  if (dtype === "str" || product(shape) === 0) {
    return ["table"];
  }
  const modes: Mode[] = shape.length ? ["heat", "line", "table", "histogram"] : ["table", "histogram"];
  if (shape.length >= 3) {
    modes.splice(1, 0, "channels");
  }
  if (shape.length >= 2 && imageAxes(shape)) {
    modes.splice(1, 0, "image");
  }
  return modes;
}

interface Axes {
  rows: number;
  columns: number;
  channels: number;
}

/** NCHW, else NHWC, else rows and columns of a single color. */
export function imageAxes(shape: readonly number[]): Axes | undefined {
  const rank = shape.length;
  if (rank >= 3 && COLORS.includes(shape[rank - 3])) {
    return { rows: rank - 2, columns: rank - 1, channels: rank - 3 };
  }
  if (rank >= 3 && COLORS.includes(shape[rank - 1])) {
    return { rows: rank - 3, columns: rank - 2, channels: rank - 1 };
  }
  return rank === 2 ? { rows: 0, columns: 1, channels: -1 } : undefined;
}

function looksLikeImage(shape: readonly number[]): boolean {
  const axes = shape.length >= 3 ? imageAxes(shape) : undefined;
  return !!axes && [axes.rows, axes.columns].every((axis) => shape[axis] >= SIDE);
}

export function choicesFor(dtype: string, shape: readonly number[]): Choices {
  const rank = shape.length;
  const modes = modesOf(dtype, shape);
  let mode = modes[0];
  if (modes.includes("line") && rank === 1) {
    mode = "line";
  } else if (mode === "heat" && looksLikeImage(shape)) {
    mode = "image";
  } else if (mode === "heat" && rank === 4 && shape[1] > 1 && shape[3] > 1) {
    mode = "channels";
  }
  return {
    ...axesFor(mode, shape),
    mode,
    at: shape.map(() => 0),
    window: undefined,
    reduce: "absmax",
    map: "even",
    log: false,
    range: undefined,
    against: "nothing",
    other: "",
    part: "all",
    bins: 64,
    cursor: [0, 0],
  };
}

/** Which axes are rows, columns and channels to begin with. */
export function axesFor(mode: Mode, shape: readonly number[]): Axes {
  const rank = shape.length;
  if (mode === "image") {
    return imageAxes(shape) as Axes;
  }
  return { rows: rank - 2 < 0 ? -1 : rank - 2, columns: rank - 1, channels: rank >= 3 ? rank - 3 : -1 };
}

/** The same choices for a tensor of another shape, as far as they fit it. */
export function fitted(choices: Choices, dtype: string, shape: readonly number[]): Choices {
  const fresh = choicesFor(dtype, shape);
  if (choices.at.length !== shape.length || !modesOf(dtype, shape).includes(choices.mode)) {
    const { reduce, map, log, range, against, other, part, bins } = choices;
    return { ...fresh, reduce, map, log, range, against, other, part, bins };
  }
  const at = choices.at.map((place, axis) => Math.max(0, Math.min(place, shape[axis] - 1)));
  return { ...choices, at, window: undefined };
}
