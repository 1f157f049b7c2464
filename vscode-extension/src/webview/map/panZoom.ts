// Zoom of a drawing with wheel, pinch, keys and buttons; pan by dragging, scrolling and keys.

import { button, element, svgElement } from "../page/elements";
import type { Layout } from "./layout";

const LEAST = 0.2;
const MOST = 4;
const STEP = 1.25;
const ARROWS: Record<string, [number, number]> = {
  ArrowLeft: [-40, 0],
  ArrowRight: [40, 0],
  ArrowUp: [0, -40],
  ArrowDown: [0, 40],
};

export class PanZoom {
  readonly root: HTMLElement;
  readonly tools: HTMLElement;
  private readonly svg: SVGSVGElement;
  private width = 0;
  private height = 0;
  private middle: { x: number; y: number } | undefined;

  constructor(
    drawing: SVGGElement,
    private zoom: number,
    private readonly zoomed: (zoom: number) => void,
  ) {
    this.svg = svgElement("svg", { role: "group", "aria-label": "Graph around the current statement" }, drawing);
    this.root = element("div", { className: "stage", label: "Graph map. Arrow keys move the graph; plus and minus zoom." }, this.svg);
    this.tools = element(
      "div",
      { className: "tools", role: "toolbar", label: "Zoom" },
      button("+", "Zoom in (+)", () => this.zoomTo(this.zoom * STEP)),
      button("−", "Zoom out (-)", () => this.zoomTo(this.zoom / STEP)),
      button("⤢", "Fit the whole drawing (0)", () => this.fit()),
    );
    this.root.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    document.addEventListener("keydown", (event) => this.key(event));
    this.dragging();
    new ResizeObserver(() => this.center()).observe(this.root);
  }

  /** Shows a layout, with the current statement in the middle. */
  show(layout: Layout, current: { x: number; y: number; width: number; height: number } | undefined): void {
    this.width = layout.width;
    this.height = layout.height;
    this.resize();
    this.middle = current && { x: current.x + current.width / 2, y: current.y + current.height / 2 };
    this.center();
  }

  private center(): void {
    if (this.middle) {
      this.root.scrollLeft = this.middle.x * this.zoom - this.root.clientWidth / 2;
      this.root.scrollTop = this.middle.y * this.zoom - this.root.clientHeight / 2;
    }
  }

  private resize(): void {
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    this.svg.setAttribute("width", String(this.width * this.zoom));
    this.svg.setAttribute("height", String(this.height * this.zoom));
  }

  private fit(): void {
    this.zoomTo(Math.min(this.root.clientWidth / this.width, this.root.clientHeight / this.height));
  }

  /** Zooms around the point (x, y) of the window, by default around its middle. */
  private zoomTo(zoom: number, x = this.root.clientWidth / 2, y = this.root.clientHeight / 2): void {
    const before = this.zoom;
    this.zoom = Math.min(MOST, Math.max(LEAST, zoom));
    const by = this.zoom / before;
    const [left, top] = [(this.root.scrollLeft + x) * by - x, (this.root.scrollTop + y) * by - y];
    this.resize();
    this.root.scrollTo(left, top);
    this.zoomed(this.zoom);
  }

  private wheel(event: WheelEvent): void {
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      const { left, top } = this.root.getBoundingClientRect();
      this.zoomTo(this.zoom * Math.exp(-event.deltaY / 300), event.clientX - left, event.clientY - top);
    }
  }

  private key(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey || !this.root.isConnected) {
      return;
    }
    const move = ARROWS[event.key];
    if (move) {
      this.root.scrollBy(...move);
    } else if (event.key === "+" || event.key === "=") {
      this.zoomTo(this.zoom * STEP);
    } else if (event.key === "-") {
      this.zoomTo(this.zoom / STEP);
    } else if (event.key === "0") {
      this.fit();
    } else {
      return;
    }
    event.preventDefault();
  }

  private dragging(): void {
    let from: { x: number; y: number; left: number; top: number } | undefined;
    this.root.addEventListener("pointerdown", (event) => {
      if (event.button === 0 && !(event.target as Element).closest(".node, .button")) {
        from = { x: event.clientX, y: event.clientY, left: this.root.scrollLeft, top: this.root.scrollTop };
        this.root.setPointerCapture(event.pointerId);
      }
    });
    this.root.addEventListener("pointermove", (event) => {
      if (from) {
        this.root.scrollTo(from.left + from.x - event.clientX, from.top + from.y - event.clientY);
      }
    });
    for (const end of ["pointerup", "pointercancel"]) {
      this.root.addEventListener(end, () => (from = undefined));
    }
  }
}
