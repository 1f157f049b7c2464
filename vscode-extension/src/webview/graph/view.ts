// The graph in the tab: what is laid out when, where one looks, and what a click does.

import type { FromTab, Graph, GraphNode, State } from "../../graph/messages";
import { painter, scaleOf, type Scale } from "../color/colors";
import { element } from "../page/elements";
import { forgetColors, paint } from "./painting";
import { type LaidOut, type Point, cut } from "./pieces";
import { Placing, TITLE } from "./placing";

const LEAST = 0.03;
const MOST = 4;
const STEP = 1.25;
/** CSS pixels on the left of a statement where a click sets a breakpoint. */
const MARGIN = 18;

/** Statistics that statements are colored by, as the server lists them. */
export const STATISTICS = ["largest absolute value", "mean", "std", "share of zeros"];

export class View {
  readonly canvas = element("canvas", { tabIndex: 0, role: "application", label: "Graph: arrow keys select a statement, Enter goes to its line" });
  private placing: Placing | undefined;
  private state: State | undefined;
  private numberOf = new Map<string, number>();
  private done: (node: number) => boolean = () => false;
  private origin: Point = { x: 0, y: 0 };
  private zoom = 1;
  private current = -1;
  private chosen = -1;
  private pointed = -1;
  private breakpoints: ReadonlySet<number> = new Set();
  private found: ReadonlySet<number> = new Set();
  private statistic = -1;
  private colorOf: (node: GraphNode) => string | undefined = () => undefined;
  private busy = false;
  private asked = false;
  /** The statement that is to be in the middle once it is laid out. */
  private wanted = -1;
  private version = 0;
  follow = true;
  /** The statement that is chosen or pointed at, in words; and the scale of the colors. */
  said: (words: string) => void = () => undefined;
  scaled: (scale: Scale | undefined) => void = () => undefined;
  toggled: (node: GraphNode) => void = () => undefined;
  closed: (statement: string) => void = () => undefined;

  constructor(
    private readonly worker: Worker,
    private readonly tell: (message: FromTab) => void,
  ) {
    worker.onmessage = ({ data }: MessageEvent<{ key: number; laid: LaidOut }>) => this.laid(data.key, data.laid);
    worker.onerror = ({ message }) => this.said(`the layout failed: ${message}`);
    new ResizeObserver(() => this.resized()).observe(this.canvas);
    const themed = () => {
      forgetColors();
      this.draw();
    };
    new MutationObserver(themed).observe(document.body, { attributes: true, attributeFilter: ["class"] });
    this.canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.dragging();
  }

  // -- what is shown -------------------------------------------------------------------------------

  show(graph: Graph): void {
    const chosen = this.placing?.graph.nodes[this.chosen]?.id;
    const seen = this.placing && this.nearest();
    this.version++;
    this.busy = false;
    this.placing = new Placing(graph, cut(graph));
    this.numberOf = new Map(graph.nodes.map(({ id }, index) => [id, index]));
    this.chosen = this.numberOf.get(chosen ?? "") ?? -1;
    this.found = new Set();
    this.locate();
    this.go(this.chosen >= 0 ? this.chosen : seen ? (this.numberOf.get(seen) ?? this.current) : this.current);
  }

  follows(state: State, statistic: number): void {
    this.state = state;
    this.statistic = statistic;
    const before = this.current;
    this.locate();
    this.color();
    if (this.follow && this.current >= 0 && (this.current !== before || before < 0) && !this.inView(this.current)) {
      this.go(this.current);
    }
    this.draw();
  }

  mark(lines: readonly number[]): void {
    this.breakpoints = new Set(lines);
    this.draw();
  }

  /** The statements with this text, in the order of the program. */
  search(text: string): number[] {
    const wanted = text.toLowerCase();
    const nodes = this.placing?.graph.nodes ?? [];
    const found = wanted ? nodes.flatMap((node, index) => (searched(node).includes(wanted) ? [index] : [])) : [];
    this.found = new Set(found);
    this.draw();
    return found;
  }

  /** Has a statement in the middle of the view, and chosen. */
  choose(node: number): void {
    this.chosen = node;
    this.say(node);
    if (this.inView(node)) {
      this.draw();
    } else {
      this.go(node);
    }
  }

  goToCurrent(): void {
    if (this.current >= 0) {
      this.go(this.current);
    }
  }

  /** Where the program is: the innermost statement on the stack that is shown; and which have run. */
  private locate(): void {
    const stack = this.state?.stack ?? [];
    const at = new Map(stack.map(({ block, pc }) => [block, pc]));
    const blocks = new Map(this.placing?.graph.blocks.map((each) => [each.id, each]));
    this.current = -1;
    for (const { block, pc } of stack) {
      this.current = this.numberOf.get(`${block}/${pc}`) ?? this.current;
    }
    const ran = (block: string, pc: number): boolean => {
      const here = at.get(block);
      if (here !== undefined) {
        return pc < here;
      }
      const { parent, node } = blocks.get(block) ?? { parent: null, node: null };
      return parent !== null && node !== null && ran(parent, pcOf(node));
    };
    this.done = (index) => {
      const node = this.placing?.graph.nodes[index];
      return node !== undefined && ran(node.block, pcOf(node.id));
    };
  }

  private color(): void {
    const found = this.statistic < 0 ? undefined : this.state?.statistics;
    if (!found) {
      this.colorOf = () => undefined;
      this.scaled(undefined);
      return;
    }
    const values = Object.values(found).map((each) => each[this.statistic] ?? NaN);
    const scale = scaleOf(values, this.statistic === 1 ? "diverging" : "even", this.statistic !== 3);
    const paintOf = painter(scale);
    this.colorOf = ({ id }) => {
      const value = found[id]?.[this.statistic];
      const pixel = value === undefined || value === null ? undefined : paintOf(value, 0);
      return pixel === undefined ? undefined : `rgb(${pixel & 255}, ${(pixel >> 8) & 255}, ${(pixel >> 16) & 255})`;
    };
    this.scaled(scale);
  }

  // -- laying out ----------------------------------------------------------------------------------

  /** One chunk at a time: the one that is wanted, then the nearest to the middle of the view. */
  private layOut(): void {
    const { placing } = this;
    if (!placing || this.busy) {
      return;
    }
    const middle = this.origin.y + this.canvas.clientHeight / this.zoom / 2;
    const wanted = this.wanted >= 0 ? placing.cut.chunkOf[this.wanted] : -1;
    let [best, least] = [-1, Infinity];
    placing.corners.forEach(({ y }, chunk) => {
      const distance = chunk === wanted ? -1 : Math.abs(y + placing.heightOf(chunk) / 2 - middle);
      if (!placing.layoutOf(chunk) && distance < least) {
        [best, least] = [chunk, distance];
      }
    });
    const chunk = placing.cut.chunks[best];
    if (chunk) {
      this.busy = true;
      this.worker.postMessage({ key: this.version * 1e6 + best, piece: chunk.piece });
    }
  }

  private laid(key: number, laid: LaidOut): void {
    const { placing } = this;
    if (!placing || Math.floor(key / 1e6) !== this.version) {
      return;
    }
    this.busy = false;
    // What is looked at stays where it is.
    const middle = this.origin.y + this.canvas.clientHeight / this.zoom / 2;
    const anchor = placing.between(middle, middle)[0] ?? 0;
    const before = placing.corners[anchor];
    placing.set(key % 1e6, laid);
    const after = placing.corners[anchor];
    this.origin = { x: this.origin.x + after.x - before.x, y: this.origin.y + after.y - before.y };
    if (this.wanted >= 0 && placing.layoutOf(placing.cut.chunkOf[this.wanted])) {
      this.go(this.wanted);
    }
    this.layOut();
    this.draw();
  }

  // -- where one looks -----------------------------------------------------------------------------

  private go(node: number): void {
    const { placing } = this;
    if (!placing || !placing.graph.nodes.length) {
      return;
    }
    const shown = Math.max(0, node);
    const { x, y } = placing.middleOf(shown);
    this.origin = { x: x - this.canvas.clientWidth / this.zoom / 2, y: y - this.canvas.clientHeight / this.zoom / 2 };
    this.wanted = placing.layoutOf(placing.cut.chunkOf[shown]) ? -1 : shown;
    this.canvas.ariaBusy = String(this.wanted >= 0);
    this.layOut();
    this.draw();
  }

  private inView(node: number): boolean {
    const { x, y } = (this.placing as Placing).middleOf(node);
    const [right, bottom] = [this.origin.x + this.canvas.clientWidth / this.zoom, this.origin.y + this.canvas.clientHeight / this.zoom];
    return x > this.origin.x + 20 && x < right - 20 && y > this.origin.y + 20 && y < bottom - 20;
  }

  /** The id of the statement nearest to the middle. */
  private nearest(): string | undefined {
    const { placing } = this;
    const middle = this.origin.y + this.canvas.clientHeight / this.zoom / 2;
    const chunk = placing?.cut.chunks[placing.between(middle, middle)[0] ?? 0];
    return chunk && placing?.graph.nodes[chunk.first]?.id;
  }

  zoomTo(zoom: number, x = this.canvas.clientWidth / 2, y = this.canvas.clientHeight / 2): void {
    const before = this.zoom;
    this.zoom = Math.min(MOST, Math.max(LEAST, zoom));
    const by = 1 / before - 1 / this.zoom;
    this.origin = { x: this.origin.x + x * by, y: this.origin.y + y * by };
    this.moved();
  }

  step(by: number): void {
    this.zoomTo(this.zoom * STEP ** by);
  }

  private moved(): void {
    this.wanted = -1;
    this.canvas.ariaBusy = "false";
    this.layOut();
    this.draw();
  }

  private resized(): void {
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(this.canvas.clientWidth * ratio);
    this.canvas.height = Math.round(this.canvas.clientHeight * ratio);
    this.moved();
  }

  /** Once for each frame of the screen. */
  private draw(): void {
    if (!this.asked) {
      this.asked = true;
      requestAnimationFrame(() => {
        this.asked = false;
        this.paint();
      });
    }
  }

  private paint(): void {
    const { placing, state, current, chosen, pointed, breakpoints, found, colorOf, done } = this;
    if (placing) {
      paint(this.canvas, placing, { state, current, chosen, pointed, breakpoints, found, color: colorOf, done }, this.zoom, this.origin);
    }
  }

  // -- pointer and keys ----------------------------------------------------------------------------

  private at(event: { offsetX: number; offsetY: number }): Point {
    return { x: this.origin.x + event.offsetX / this.zoom, y: this.origin.y + event.offsetY / this.zoom };
  }

  private nodeAt({ x, y }: Point): number {
    const { placing } = this;
    for (const chunk of placing?.between(y, y) ?? []) {
      const { first, end } = placing!.cut.chunks[chunk];
      for (let node = placing!.layoutOf(chunk) ? first : end; node < end; node++) {
        const [middle, [width, height]] = [placing!.middleOf(node), placing!.sizeOf(node)];
        if (Math.abs(x - middle.x) <= width / 2 && Math.abs(y - middle.y) <= height / 2) {
          return node;
        }
      }
    }
    return -1;
  }

  private dragging(): void {
    let from: { x: number; y: number; origin: Point; moved: boolean } | undefined;
    this.canvas.addEventListener("pointerdown", (event) => {
      if (event.button === 0) {
        from = { x: event.clientX, y: event.clientY, origin: this.origin, moved: false };
        this.canvas.setPointerCapture(event.pointerId);
      }
    });
    this.canvas.addEventListener("pointermove", (event) => {
      if (from) {
        const [x, y] = [event.clientX - from.x, event.clientY - from.y];
        from.moved ||= Math.hypot(x, y) > 4;
        if (from.moved) {
          this.origin = { x: from.origin.x - x / this.zoom, y: from.origin.y - y / this.zoom };
          this.moved();
        }
        return;
      }
      const pointed = this.nodeAt(this.at(event));
      if (pointed !== this.pointed) {
        this.pointed = pointed;
        this.say(pointed >= 0 ? pointed : this.chosen);
        this.canvas.style.cursor = pointed >= 0 ? "pointer" : "grab";
        this.draw();
      }
    });
    this.canvas.addEventListener("pointerup", (event) => {
      const clicked = from && !from.moved;
      from = undefined;
      if (clicked) {
        this.click(this.at(event));
      }
    });
    this.canvas.addEventListener("pointercancel", () => (from = undefined));
  }

  private click(place: Point): void {
    const { placing } = this;
    const index = this.nodeAt(place);
    const node = placing?.graph.nodes[index];
    if (!placing || !node) {
      // Inner frames come after outer ones.
      const frame = [...(placing?.frames ?? [])].reverse().find(({ x, y, width }) => place.x >= x && place.x <= x + width && place.y >= y && place.y <= y + TITLE);
      if (frame && frame.of.node !== null) {
        this.closed(frame.of.node);
      }
      return;
    }
    this.chosen = index;
    this.say(index);
    const offset = place.x - (placing.middleOf(index).x - placing.sizeOf(index)[0] / 2);
    if (offset < MARGIN) {
      this.tell({ kind: "breakpoint", line: node.line });
    } else if (offset < MARGIN + 22 && node.kind !== "op" && node.kind !== "end") {
      this.toggled(node);
    } else {
      this.tell({ kind: "line", line: node.line });
    }
    this.draw();
  }

  private wheel(event: WheelEvent): void {
    event.preventDefault();
    if (event.ctrlKey || event.metaKey) {
      this.zoomTo(this.zoom * Math.exp(-event.deltaY / 300), event.offsetX, event.offsetY);
    } else {
      const [x, y] = event.shiftKey ? [event.deltaY, 0] : [event.deltaX, event.deltaY];
      this.origin = { x: this.origin.x + x / this.zoom, y: this.origin.y + y / this.zoom };
      this.moved();
    }
  }

  private key(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey || !this.placing) {
      return;
    }
    const { nodes } = this.placing.graph;
    const node = nodes[this.chosen];
    const next = { ArrowDown: this.chosen + 1, ArrowUp: this.chosen - 1, Home: 0, End: nodes.length - 1 }[event.key];
    if (next !== undefined) {
      this.choose(Math.max(0, Math.min(nodes.length - 1, this.chosen < 0 ? Math.max(0, this.current) : next)));
    } else if (event.key === "Enter" && node) {
      this.tell({ kind: "line", line: node.line });
    } else if (event.key === "b" && node) {
      this.tell({ kind: "breakpoint", line: node.line });
    } else if (event.key === "ArrowRight" && node && node.kind !== "op" && node.kind !== "end") {
      this.toggled(node);
    } else if (event.key === "ArrowLeft" && node) {
      const block = this.placing.graph.blocks.find(({ id }) => id === node.block);
      if (block && block.node !== null) {
        this.closed(block.node);
      }
    } else if (event.key === "+" || event.key === "=" || event.key === "-") {
      this.step(event.key === "-" ? -1 : 1);
    } else {
      return;
    }
    event.preventDefault();
  }

  private say(index: number): void {
    const node = this.placing?.graph.nodes[index];
    if (!node) {
      this.said("");
      return;
    }
    const flag = this.state?.flags[node.id];
    const value = this.statistic >= 0 ? this.state?.statistics?.[node.id]?.[this.statistic] : undefined;
    const known = value === undefined || value === null ? "" : `${STATISTICS[this.statistic]} ${Number(value.toPrecision(4))}`;
    this.said([`line ${node.line}: ${node.label}`, node.values.join(", "), node.type, flag === "nan" ? "contains NaN" : flag ? "contains Inf" : "", known].filter((each) => each).join("  ·  "));
  }
}

function pcOf(id: string): number {
  return Number(id.slice(id.lastIndexOf("/") + 1));
}

function searched({ label, values, type }: GraphNode): string {
  return `${label} ${values.join(" ")} ${type}`.toLowerCase();
}
