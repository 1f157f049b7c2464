// Texts about a picture, about the whole tensor, and about its NaN and Inf.

import type { Comparison, Slice, Statistics } from "../../tensor/messages";
import type { DisplayOptions } from "./displayOptions";
import { NONFINITE } from "../color/colors";
import { element } from "../page/elements";
import type { Loaded } from "./loader";
import { NAN, NEGATIVE_INFINITY, POSITIVE_INFINITY, rounded } from "../page/numbers";

export interface NonfiniteCounts {
  nan?: number;
  posinf?: number;
  neginf?: number;
}

const CELLS: Record<Slice["reduce"], string> = {
  absmax: "the element farthest from zero",
  mean: "the mean",
  min: "the smallest element",
  max: "the largest element",
  range: "the smallest and the largest element",
  stride: "",
};

/** What a cell shows. */
export function cellDescription(slice: Slice, { reduce }: DisplayOptions): string {
  if (!slice.stride.some((each) => each > 1)) {
    return "Every element is shown.";
  }
  const shown = slice.stride.filter((_, axis) => slice.sourceShape[axis] > 1);
  const block = shown.join(" × ");
  if (slice.reduce !== "stride") {
    return `Each cell shows ${CELLS[slice.reduce]} of a block of ${block} elements. If the block contains NaN or Inf, the cell shows the NaN or Inf.`;
  }
  const why = reduce === "stride" ? "" : " Block values are not available for a tensor of this size.";
  return `Each cell shows one element of a block of ${block} elements.${why} The statistics include all elements.`;
}

/** The numbers of NaN and Inf in an answer. */
export function nonfiniteCounts({ slice, cells }: Loaded): NonfiniteCounts {
  if (slice.reduce !== "stride") {
    return slice;
  }
  const count = (flag: number) => cells.nonfinite.reduce((sum, each) => sum + (each & flag ? 1 : 0), 0);
  return { nan: count(NAN), posinf: count(POSITIVE_INFINITY), neginf: count(NEGATIVE_INFINITY) };
}

/** The colors and numbers of NaN and Inf. */
export function legendOf(counts: NonfiniteCounts, of = ""): HTMLElement[] {
  const found: Record<number, number | undefined> = {
    [NAN]: counts.nan,
    [POSITIVE_INFINITY]: counts.posinf,
    [NEGATIVE_INFINITY]: counts.neginf,
  };
  const entries = NONFINITE.filter(({ flag }) => found[flag]).map(({ flag, name, style }) =>
    element("span", { className: "entry" }, element("span", { className: `swatch ${style}` }), `${of}${name} ${counted(found[flag] as number)}`),
  );
  return entries.length ? entries : [element("span", { className: "entry" }, `${of}all finite`)];
}

export function statisticsSentence(stats: Statistics): string {
  const infinite = stats.posinf + stats.neginf;
  return [
    ...(stats.nan ? [`nan ${counted(stats.nan)}`] : []),
    ...(infinite ? [`inf ${counted(infinite)}`] : []),
    ...(["min", "max", "mean", "std"] as const).map((name) => `${name} ${rounded(stats[name])}`),
    `${counted(stats.count)} ${stats.count === 1 ? "element" : "elements"}`,
  ].join(" · ");
}

export function distanceText(found: Comparison): string {
  if (!found.mismatched) {
    return "All elements are equal.";
  }
  // Distances are between finite elements only.
  const finite = found.mismatched > found.nan_mismatch + found.inf_mismatch;
  return [
    `${counted(found.mismatched)} of ${counted(found.count)} elements differ`,
    ...(found.nan_mismatch ? [`NaN on one side: ${counted(found.nan_mismatch)}`] : []),
    ...(found.inf_mismatch ? [`Inf on one side, or with opposite signs: ${counted(found.inf_mismatch)}`] : []),
    ...(finite ? [`largest difference ${rounded(found.max_abs)}`, `relative ${rounded(found.max_rel)}`] : []),
    ...(found.worst?.length ? [`worst at [${found.worst.join(", ")}]`] : []),
  ].join(" · ");
}

function counted(number: number): string {
  return number.toLocaleString("en");
}
