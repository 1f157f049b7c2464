// The colours of a scale, with the numbers that they stand for.

import { Scale, tableOf } from "./colors";
import { element } from "./elements";
import { rounded } from "./numbers";

const WIDTH = 78;
const STRIP = 14;
const EDGE = 7;

/** From top to bottom, with its ends and middle. */
export function drawBar(canvas: HTMLCanvasElement, { map, low, high }: Scale, height: number): void {
  const ratio = window.devicePixelRatio || 1;
  const context = canvas.getContext("2d") as CanvasRenderingContext2D;
  const style = getComputedStyle(canvas);
  Object.assign(canvas, { width: WIDTH * ratio, height: height * ratio });
  canvas.style.width = `${WIDTH}px`;
  canvas.style.height = `${height}px`;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  const table = tableOf(map);
  const strip = element("canvas", { width: 1, height: table.length });
  const colors = new Uint8ClampedArray(Uint32Array.from(table).reverse().buffer);
  strip.getContext("2d")?.putImageData(new ImageData(colors, 1, table.length), 0, 0);
  context.drawImage(strip, 0, EDGE, STRIP, height - 2 * EDGE);
  context.fillStyle = style.color;
  context.font = `11px ${style.fontFamily}`;
  context.textBaseline = "middle";
  for (const [value, part] of [[high, 0], [(low + high) / 2, 0.5], [low, 1]] as const) {
    context.fillText(rounded(value), STRIP + 6, EDGE + part * (height - 2 * EDGE));
  }
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `Colors from ${rounded(low)} to ${rounded(high)}`);
}
