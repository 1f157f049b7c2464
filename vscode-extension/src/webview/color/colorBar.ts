// The colors of a scale with numbers.

import { type Scale, tableOf, valueAt } from "./colors";
import { element } from "../page/elements";
import { rounded } from "../page/numbers";

const STRIP = 14;
const GAP = 6;
const EDGE = 7;

/** Draws a vertical bar with labels at its ends and middle.  Returns its width. */
export function drawBar(canvas: HTMLCanvasElement, scale: Scale, height: number): number {
  const { map, low, high } = scale;
  const ratio = window.devicePixelRatio || 1;
  const context = canvas.getContext("2d") as CanvasRenderingContext2D;
  const style = getComputedStyle(canvas);
  const font = `11px ${style.fontFamily}`;
  const labels = [0, 0.5, 1].map((part) => rounded(valueAt(1 - part, scale)));
  context.font = font;
  const width = Math.ceil(STRIP + GAP + Math.max(...labels.map((label) => context.measureText(label).width)) + 2);
  // This clears the canvas, and its font.
  Object.assign(canvas, { width: Math.round(width * ratio), height: Math.round(height * ratio) });
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  const table = tableOf(map);
  const strip = element("canvas", { width: 1, height: table.length });
  const colors = new Uint8ClampedArray(Uint32Array.from(table).reverse().buffer);
  strip.getContext("2d")?.putImageData(new ImageData(colors, 1, table.length), 0, 0);
  context.drawImage(strip, 0, EDGE, STRIP, height - 2 * EDGE);
  context.fillStyle = style.color;
  context.font = font;
  context.textBaseline = "middle";
  labels.forEach((label, index) => context.fillText(label, STRIP + GAP, EDGE + (index / 2) * (height - 2 * EDGE)));
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `Colors from ${rounded(low)} to ${rounded(high)}${scale.threshold ? ", logarithmic" : ""}`);
  return width;
}
