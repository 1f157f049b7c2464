// The visible part of the graph: its upper left corner and zoom.

import type { Point } from "./chunks";

const LEAST_ZOOM = 0.03;
const MOST_ZOOM = 4;
/** CSS pixels around the edge in which a point does not count as visible. */
const EDGE = 20;

interface Area {
  x: number;
  y: number;
  width: number;
  height: number;
}

export class Viewport {
  origin: Point = { x: 0, y: 0 };
  zoom = 1;

  constructor(private readonly canvas: HTMLCanvasElement) {}

  get middle(): Point {
    return this.toGraph({ offsetX: this.canvas.clientWidth / 2, offsetY: this.canvas.clientHeight / 2 });
  }

  /** The point of the graph at a point of the canvas. */
  toGraph({ offsetX, offsetY }: { offsetX: number; offsetY: number }): Point {
    return { x: this.origin.x + offsetX / this.zoom, y: this.origin.y + offsetY / this.zoom };
  }

  center({ x, y }: Point): void {
    this.origin = { x: x - this.canvas.clientWidth / this.zoom / 2, y: y - this.canvas.clientHeight / this.zoom / 2 };
  }

  /** The zoom at which an area fills the canvas, without enlargement. */
  zoomFor({ width, height }: Area): number {
    const { clientWidth, clientHeight } = this.canvas;
    return Math.max(LEAST_ZOOM, Math.min(1, (clientWidth - 2 * EDGE) / width, (clientHeight - 2 * EDGE) / height));
  }

  /** Shows an area as a whole. */
  fit(area: Area): void {
    this.zoom = this.zoomFor(area);
    this.center({ x: area.x + area.width / 2, y: area.y + area.height / 2 });
  }

  shows({ x, y }: Point): boolean {
    const { origin } = this;
    const [right, bottom] = [origin.x + this.canvas.clientWidth / this.zoom, origin.y + this.canvas.clientHeight / this.zoom];
    return x > origin.x + EDGE && x < right - EDGE && y > origin.y + EDGE && y < bottom - EDGE;
  }

  /** Moves the graph by CSS pixels. */
  pan(x: number, y: number): void {
    this.origin = { x: this.origin.x + x / this.zoom, y: this.origin.y + y / this.zoom };
  }

  /** Zooms around a point of the canvas, by default around its middle. */
  zoomBy(factor: number, x = this.canvas.clientWidth / 2, y = this.canvas.clientHeight / 2): void {
    const before = this.zoom;
    this.zoom = Math.min(MOST_ZOOM, Math.max(LEAST_ZOOM, before * factor));
    const by = 1 / before - 1 / this.zoom;
    this.origin = { x: this.origin.x + x * by, y: this.origin.y + y * by };
  }

  /** Adapts the canvas to its size on the screen. */
  resize(): void {
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(this.canvas.clientWidth * ratio);
    this.canvas.height = Math.round(this.canvas.clientHeight * ratio);
  }
}
