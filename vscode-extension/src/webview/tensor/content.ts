// The content of a tensor view: what is loaded for its display options.

import type { Histogram, Slice } from "../../tensor/messages";
import { isCompared, partShown } from "./controls";
import type { DisplayOptions, Part, TensorInfo } from "./displayOptions";
import type { Loaded, Loader } from "./loader";

/** A tensor with its display options. */
export interface DisplayedTensor {
  info: TensorInfo;
  options: DisplayOptions;
}

/** A part of a comparison, or the tensor itself. */
export interface Shown {
  part: Part;
  loaded: Loaded;
}

export interface Content extends DisplayedTensor {
  /** Empty for a table and a histogram. */
  shown: Shown[];
  histogram: Histogram | undefined;
}

export const PART_NAMES: Record<Part, string> = { all: "", here: "this value", there: "other value", difference: "difference" };

/** Loads what the mode shows.  `hasType` checks each answer: undefined if the tensor has another type than before. */
export async function loadContent(loader: Loader, tensor: DisplayedTensor, hasType: (slice: Slice) => boolean): Promise<Content | undefined> {
  const { options } = tensor;
  const part = partShown(options);
  if (options.mode === "histogram" || options.mode === "table") {
    if (!hasType(await loader.probe())) {
      return undefined;
    }
    return { ...tensor, shown: [], histogram: options.mode === "histogram" ? await loader.histogram(options, part) : undefined };
  }
  const shown: Shown[] = [];
  const parts: Part[] = options.mode === "line" ? ["here", "there"] : ["here", "there", "difference"];
  for (const each of isCompared(options) && part === "all" ? parts : [part]) {
    const loaded = await loader.picture(options, each);
    if (each !== "there" && !hasType(loaded.slice)) {
      return undefined;
    }
    shown.push({ part: each, loaded });
  }
  return { ...tensor, shown, histogram: undefined };
}

/** Whether two contents have the same pictures with the same options. */
export function isSameContent(before: Content, after: Content): boolean {
  return (
    after.shown.length > 0 &&
    before.options === after.options &&
    after.shown.every(({ loaded }, index) => loaded === before.shown[index]?.loaded)
  );
}
