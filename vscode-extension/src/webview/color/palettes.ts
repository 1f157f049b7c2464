// The color maps, as 256 colors each: rrggbb after rrggbb.
// The build evaluates this file, so that the pages carry its strings and not the libraries.

import { rgb } from "d3-color";
import { interpolateRdBu, interpolateViridis } from "d3-scale-chromatic";

export const STEPS = 256;

function colors(map: (part: number) => string): string {
  return Array.from({ length: STEPS }, (_, step) => rgb(map(step / (STEPS - 1))).formatHex().slice(1)).join("");
}

export const EVEN = colors(interpolateViridis);
export const DIVERGING = colors((part) => interpolateRdBu(1 - part));
