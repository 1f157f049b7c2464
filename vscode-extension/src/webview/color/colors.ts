// Numbers as colors: a map that is even to the eye, one that parts at zero, and colors of their own for
// what is not finite.

import { NAN, NEGATIVE_INFINITY, POSITIVE_INFINITY } from "../page/numbers";
import { DIVERGING, EVEN, STEPS } from "./palettes";

export type MapName = "even" | "diverging";

const MAPS: Record<MapName, string> = { even: EVEN, diverging: DIVERGING };

export interface Scale {
  map: MapName;
  low: number;
  high: number;
  /** Of a logarithmic scale: the absolute value below which it is linear, so that it has a place for zero. */
  threshold?: number;
}

/** Decades that a logarithmic scale has at most on each side of zero. */
const DECADES = 8;

/** `style` is the class of the same color in the style sheet. */
export const ODD: readonly { flag: number; name: string; color: string; style: string }[] = [
  { flag: NAN, name: "NaN", color: "#ff00ff", style: "nan" },
  { flag: POSITIVE_INFINITY, name: "+Inf", color: "#ff7b00", style: "posinf" },
  { flag: NEGATIVE_INFINITY, name: "−Inf", color: "#00e5ff", style: "neginf" },
];

const tables = new Map<MapName, Uint32Array>();

/** The colors of a map as pixels, least byte red. */
export function tableOf(map: MapName): Uint32Array {
  let table = tables.get(map);
  if (!table) {
    table = Uint32Array.from({ length: STEPS }, (_, step) => pixel(MAPS[map].slice(6 * step, 6 * step + 6)));
    tables.set(map, table);
  }
  return table;
}

/** The pixel of a color that is given as rrggbb. */
function pixel(color: string): number {
  const [red, green, blue] = [0, 2, 4].map((at) => parseInt(color.slice(at, at + 2), 16)) as [number, number, number];
  return (0xff000000 | (blue << 16) | (green << 8) | red) >>> 0;
}

const ODD_PIXELS = ODD.map(({ flag, color }) => ({ flag, pixel: pixel(color.slice(1)) }));

/** The color, as a pixel, of each value on a scale: what is not finite in a cell is seen before all else. */
export function painter(scale: Scale): (value: number, odd: number) => number {
  const table = tableOf(scale.map);
  const [low, high] = [bent(scale.low, scale), bent(scale.high, scale)];
  return (value, odd) => {
    if (odd) {
      return (ODD_PIXELS.find(({ flag }) => odd & flag) as { pixel: number }).pixel;
    }
    const part = high > low ? (bent(value, scale) - low) / (high - low) : 0.5;
    return table[Math.max(0, Math.min(STEPS - 1, Math.floor(part * STEPS)))];
  };
}

/** The value at a part of a scale, 0 for its lower end and 1 for the upper one. */
export function valueAt(part: number, scale: Scale): number {
  const { low, high, threshold } = scale;
  if (threshold === undefined || part === 0 || part === 1) {
    return low + part * (high - low);
  }
  return 2 * threshold * Math.sinh(bent(low, scale) + part * (bent(high, scale) - bent(low, scale)));
}

function bent(value: number, { threshold }: Scale): number {
  return threshold === undefined ? value : Math.asinh(value / (2 * threshold));
}

/** The least absolute value of a logarithmic scale: that of the data, within so many decades of the greatest. */
export function thresholdOf(values: ArrayLike<number>): number {
  let [least, most] = [Infinity, 0];
  for (let i = 0; i < values.length; i++) {
    const value = Math.abs(values[i]);
    if (value > 0 && value < Infinity) {
      least = Math.min(least, value);
      most = Math.max(most, value);
    }
  }
  return most ? Math.max(least, most / 10 ** DECADES) : 1;
}

/** From the least to the greatest finite value; about zero, if the map parts there. */
export function scaleOf(values: ArrayLike<number>, map: MapName, log = false): Scale {
  let [low, high] = [Infinity, -Infinity];
  for (let i = 0; i < values.length; i++) {
    const value = values[i];
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
  return log ? { map, low, high, threshold: thresholdOf(values) } : { map, low, high };
}
