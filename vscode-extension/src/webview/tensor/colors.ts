// Numbers as colours: a map that is even to the eye, one that parts at zero, and colours of their own for
// what is not finite.

import { rgb } from "d3-color";
import { interpolateRdBu, interpolateViridis } from "d3-scale-chromatic";
import { NAN, NEGATIVE_INFINITY, POSITIVE_INFINITY } from "./numbers";

export type MapName = "even" | "diverging";

const STEPS = 256;
const MAPS: Record<MapName, (part: number) => string> = {
  even: interpolateViridis,
  diverging: (part) => interpolateRdBu(1 - part),
};

export interface Scale {
  map: MapName;
  low: number;
  high: number;
}

/** `style` is the class of the same colour in the style sheet. */
export const ODD: readonly { flag: number; name: string; color: string; style: string }[] = [
  { flag: NAN, name: "NaN", color: "#ff00ff", style: "nan" },
  { flag: POSITIVE_INFINITY, name: "+Inf", color: "#ff7b00", style: "posinf" },
  { flag: NEGATIVE_INFINITY, name: "−Inf", color: "#00e5ff", style: "neginf" },
];

const tables = new Map<MapName, Uint32Array>();

/** The colours of a map as pixels, least byte red. */
export function tableOf(map: MapName): Uint32Array {
  let table = tables.get(map);
  if (!table) {
    table = Uint32Array.from({ length: STEPS }, (_, step) => pixel(MAPS[map](step / (STEPS - 1))));
    tables.set(map, table);
  }
  return table;
}

function pixel(color: string): number {
  const { r, g, b } = rgb(color);
  return (0xff000000 | (Math.round(b) << 16) | (Math.round(g) << 8) | Math.round(r)) >>> 0;
}

const ODD_PIXELS = ODD.map(({ flag, color }) => ({ flag, pixel: pixel(color) }));

/** The pixel of a cell: what is not finite in it is seen before all else. */
export function pixelOf(value: number, odd: number, scale: Scale, table: Uint32Array): number {
  if (odd) {
    return (ODD_PIXELS.find(({ flag }) => odd & flag) as { pixel: number }).pixel;
  }
  const width = scale.high - scale.low;
  const part = width > 0 ? (value - scale.low) / width : 0.5;
  const step = Math.max(0, Math.min(STEPS - 1, Math.floor(part * STEPS)));
  return table[step] as number;
}

/** From the least to the greatest finite value; about zero, if the map parts there. */
export function scaleOf(values: ArrayLike<number>, map: MapName): Scale {
  let [low, high] = [Infinity, -Infinity];
  for (let i = 0; i < values.length; i++) {
    const value = values[i] as number;
    if (Number.isFinite(value)) {
      low = value < low ? value : low;
      high = value > high ? value : high;
    }
  }
  if (low > high) {
    [low, high] = [0, 0];
  }
  if (map === "diverging") {
    high = Math.max(Math.abs(low), Math.abs(high));
    low = -high;
  }
  return { map, low, high };
}
