// The color maps: 256 colors each, as rrggbb.
// The build replaces this file by its values, so that pages do not include the libraries.

import { rgb } from "d3-color";
import { interpolateRdBu, interpolateViridis } from "d3-scale-chromatic";

export const STEPS = 256;

function colors(map: (part: number) => string): string {
  return Array.from({ length: STEPS }, (_, step) => rgb(map(step / (STEPS - 1))).formatHex().slice(1)).join("");
}

export const EVEN = colors(interpolateViridis);
export const DIVERGING = colors((part) => interpolateRdBu(1 - part));
