// Numbers as colors: a perceptually uniform map, a diverging one, and fixed colors for NaN and Inf.

import { NAN, NEGATIVE_INFINITY, POSITIVE_INFINITY } from "../page/numbers";
import { DIVERGING, EVEN, STEPS } from "./palettes";

export type MapName = "even" | "diverging";

const MAPS: Record<MapName, string> = { even: EVEN, diverging: DIVERGING };

export interface Scale {
  map: MapName;
  low: number;
  high: number;
  /** Of a logarithmic scale: the absolute value below which it is linear. */
  threshold?: number;
}

/** The most decades of a logarithmic scale, on each side of zero. */
const DECADES = 8;

/** `style` is the CSS class with the same color. */
export const NONFINITE: readonly { flag: number; name: string; color: string; style: string }[] = [
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

const NONFINITE_PIXELS = new Map(NONFINITE.map(({ flag, color }) => [flag, pixel(color.slice(1))]));

/** The color of a cell with these flags; undefined without NaN and Inf. */
export const nonfiniteStyle = (flags: number) => NONFINITE.find(({ flag }) => flags & flag);

/** The same as a pixel. */
export function nonfinitePixel(flags: number): number | undefined {
  return NONFINITE_PIXELS.get(nonfiniteStyle(flags)?.flag ?? 0);
}

/** The pixel of each value on a scale.  NaN and Inf in a cell come first. */
export function painter(scale: Scale): (value: number, nonfinite: number) => number {
  const table = tableOf(scale.map);
  const [low, high] = [transformed(scale.low, scale), transformed(scale.high, scale)];
  return (value, nonfinite) => {
    if (nonfinite) {
      return nonfinitePixel(nonfinite) as number;
    }
    const part = high > low ? (transformed(value, scale) - low) / (high - low) : 0.5;
    return table[Math.max(0, Math.min(STEPS - 1, Math.floor(part * STEPS)))];
  };
}

/** The value at a part of a scale, from 0 at its lower end to 1. */
export function valueAt(part: number, scale: Scale): number {
  const { low, high, threshold } = scale;
  if (threshold === undefined || part === 0 || part === 1) {
    return low + part * (high - low);
  }
  return 2 * threshold * Math.sinh(transformed(low, scale) + part * (transformed(high, scale) - transformed(low, scale)));
}

function transformed(value: number, { threshold }: Scale): number {
  return threshold === undefined ? value : Math.asinh(value / (2 * threshold));
}

/** The threshold of a logarithmic scale: the least absolute value, within `DECADES` of the greatest. */
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

/** The scale from the least to the greatest finite value; symmetric for a diverging map. */
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
