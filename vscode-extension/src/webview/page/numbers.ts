// The numbers of an answer: decoding, order in a grid, and text.

import type { Slice } from "../../tensor/messages";

type Numbers = Float32Array | Float64Array | Int8Array | Int16Array | Int32Array | Uint8Array | Uint16Array | Uint32Array;

const ARRAYS: Record<string, new (bytes: ArrayBuffer) => Numbers | BigInt64Array | BigUint64Array> = {
  f32: Float32Array,
  f64: Float64Array,
  i8: Int8Array,
  i16: Int16Array,
  i32: Int32Array,
  i64: BigInt64Array,
  u8: Uint8Array,
  u16: Uint16Array,
  u32: Uint32Array,
  u64: BigUint64Array,
};

export const NAN = 1;
export const POSITIVE_INFINITY = 2;
export const NEGATIVE_INFINITY = 4;

/** The cells of an answer in C order. */
export interface Cells {
  shape: number[];
  /** Numbers for colors: the absolute values of complex cells. */
  values: ArrayLike<number>;
  /** The flags of NaN and Inf in each cell. */
  nonfinite: Uint8Array;
  text(index: number): string;
}

export function cellsOf(slice: Slice): Cells {
  const { shape, dtype } = slice;
  if (typeof slice.data !== "string") {
    const texts = slice.data.map(String);
    const size = texts.length;
    return { shape, values: new Float64Array(size), nonfinite: new Uint8Array(size), text: (index) => texts[index] ?? "" };
  }
  const raw = new ARRAYS[slice.elements ?? "f64"](bytesOf(slice.data).buffer as ArrayBuffer);
  const complex = dtype.startsWith("c") && slice.reduce === "stride" && raw.length === 2 * product(shape);
  const values = complex ? magnitudes(raw as Numbers) : asNumbers(raw);
  const nonfinite = slice.flags === undefined ? nonfiniteOf(values) : bytesOf(slice.flags);
  return { shape, values, nonfinite, text: (index) => (complex ? pairText(raw as Numbers, index) : elementText(raw, index, dtype)) };
}

function bytesOf(base64: string): Uint8Array {
  const binary = atob(base64);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) {
    bytes[i] = binary.charCodeAt(i);
  }
  return bytes;
}

function asNumbers(raw: Numbers | BigInt64Array | BigUint64Array): ArrayLike<number> {
  return raw instanceof BigInt64Array || raw instanceof BigUint64Array ? Float64Array.from(raw, Number) : raw;
}

function magnitudes(pairs: Numbers): Float64Array {
  return Float64Array.from({ length: pairs.length / 2 }, (_, index) =>
    Math.hypot(pairs[2 * index], pairs[2 * index + 1]),
  );
}

function nonfiniteOf(values: ArrayLike<number>): Uint8Array {
  const nonfinite = new Uint8Array(values.length);
  for (let i = 0; i < values.length; i++) {
    const value = values[i];
    if (!Number.isFinite(value)) {
      nonfinite[i] = value !== value ? NAN : value > 0 ? POSITIVE_INFINITY : NEGATIVE_INFINITY;
    }
  }
  return nonfinite;
}

function elementText(raw: Numbers | BigInt64Array | BigUint64Array, index: number, dtype: string): string {
  const value = raw[index];
  if (value === undefined) {
    return "";
  }
  if (dtype === "bool" && raw instanceof Uint8Array) {
    return value ? "true" : "false";
  }
  return raw instanceof Float32Array ? shortest(value as number) : numberText(value);
}

function pairText(pairs: Numbers, index: number): string {
  const write = pairs instanceof Float32Array ? shortest : numberText;
  const [real, imaginary] = [pairs[2 * index], pairs[2 * index + 1]];
  const sign = imaginary < 0 || Object.is(imaginary, -0) ? "-" : "+";
  return `${write(real)}${sign}${write(Math.abs(imaginary))}j`;
}

/** The fewest digits that identify an f32. */
export function shortest(value: number): string {
  for (let digits = 1; digits < 9; digits++) {
    const text = Number(value.toPrecision(digits));
    if (Math.fround(text) === value) {
      return numberText(text);
    }
  }
  return numberText(Number(value.toPrecision(9)));
}

export function numberText(value: number | bigint): string {
  if (typeof value === "bigint") {
    return String(value);
  }
  if (Number.isFinite(value)) {
    return Object.is(value, -0) ? "-0" : String(value);
  }
  return Number.isNaN(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

/** Four significant digits. */
export function rounded(value: number | null): string {
  return value === null ? "–" : numberText(Number(value.toPrecision(4)));
}

/** The range of an axis for values that are all equal, or none of which is finite; undefined for others. */
export function aroundConstant(low: number | null, high: number | null): [number, number] | undefined {
  if (low !== null && low !== high) {
    return undefined;
  }
  const [middle, half] = [low ?? 0, Math.abs(low ?? 0) || 1];
  return [middle - half, middle + half];
}

export function product(sizes: readonly number[]): number {
  return sizes.reduce((all, size) => all * size, 1);
}

/** The shape in a type: `[1, 64]` of `f32[1,64]`. */
export function shapeOf(type: string): number[] {
  const inner = /\[([\d,]*)\]$/.exec(type)?.[1];
  return inner ? inner.split(",").map(Number) : [];
}

/** The position of an element in C order. */
export function positionOf(index: readonly number[], shape: readonly number[]): number {
  return shape.reduce((position, size, axis) => position * size + (index[axis] ?? 0), 0);
}

/** Two axes of the cells as rows and columns, at one index of the others. */
export interface Grid {
  rows: number;
  columns: number;
  cell(row: number, column: number): number;
}

/** The grid of cells in C order; an axis of -1 has one index. */
export function gridOf(shape: readonly number[], rowAxis: number, columnAxis: number, at: readonly number[] = []): Grid {
  const strides = shape.map((_, axis) => product(shape.slice(axis + 1)));
  const fixed = strides.reduce((sum, stride, axis) => sum + (axis === rowAxis || axis === columnAxis ? 0 : stride * (at[axis] ?? 0)), 0);
  const [down, right] = [strides[rowAxis] ?? 0, strides[columnAxis] ?? 0];
  return {
    rows: shape[rowAxis] ?? 1,
    columns: shape[columnAxis] ?? 1,
    cell: (row, column) => fixed + row * down + column * right,
  };
}
