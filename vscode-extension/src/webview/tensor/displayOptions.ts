// How a tensor is displayed: the options of the user, and their defaults.

import type { Reduction } from "../../tensor/messages";
import type { MapName } from "../color/colors";
import { product } from "../page/numbers";

/** The type of a tensor. */
export interface TensorInfo {
  type: string;
  dtype: string;
  shape: number[];
}

export type Mode = "heat" | "image" | "channels" | "line" | "table" | "histogram";
export type Against = "nothing" | "previous" | "branch" | "expression";
export type Part = "all" | "here" | "there" | "difference";

export interface DisplayOptions {
  mode: Mode;
  /** Axes; -1 for none. */
  rows: number;
  columns: number;
  channels: number;
  /** The shown index of each other axis. */
  at: number[];
  /** The shown rows and columns, if not all. */
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
  /** The row and column of an element, in the whole tensor. */
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

/** The numbers of channels of images. */
const COLORS = [1, 3, 4];
/** The smallest side of a tensor that is shown as an image by default. */
const LEAST_SIDE = 8;

/** The modes for a tensor. */
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

/** The axes of an image: NCHW, else NHWC, else rows and columns. */
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
  return !!axes && [axes.rows, axes.columns].every((axis) => shape[axis] >= LEAST_SIDE);
}

export function defaultOptions(dtype: string, shape: readonly number[]): DisplayOptions {
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

/** The default axes of a mode. */
export function axesFor(mode: Mode, shape: readonly number[]): Axes {
  const rank = shape.length;
  if (mode === "image") {
    return imageAxes(shape) as Axes;
  }
  return { rows: rank - 2 < 0 ? -1 : rank - 2, columns: rank - 1, channels: rank >= 3 ? rank - 3 : -1 };
}

/** The same options for a tensor of another type, as far as they apply. */
export function fitted(options: DisplayOptions, dtype: string, shape: readonly number[]): DisplayOptions {
  const fresh = defaultOptions(dtype, shape);
  if (options.at.length !== shape.length || !modesOf(dtype, shape).includes(options.mode)) {
    const { reduce, map, log, range, against, other, part, bins } = options;
    return { ...fresh, reduce, map, log, range, against, other, part, bins };
  }
  const at = options.at.map((place, axis) => Math.max(0, Math.min(place, shape[axis] - 1)));
  return { ...options, at, window: undefined };
}
