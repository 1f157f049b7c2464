// The graph on a canvas: lays out visible chunks first, follows the current statement, and handles pointer and keys.

import type { FromGraph, Graph, GraphNode, GraphState } from "../../graph/messages";
import type { Scale } from "../color/colors";
import { element, onThemeChange } from "../page/elements";
import { ChunkWorker } from "./chunkWorker";
import { type ChunkLayout, type Point, chunked } from "./chunks";
import { GraphLayout } from "./graphLayout";
import { READABLE, forgetColors, paint } from "./painting";
import { handlePointer } from "./pointer";
import { currentNode, descriptionOf, executedBy, flaggedInside, matches, statisticColors } from "./progress";
import { withoutStates } from "./simplified";
import { Viewport } from "./viewport";

const ZOOM_STEP = 1.25;
/** CSS pixels at the left of a statement in which a click sets a breakpoint, and then those of its triangle. */
const BREAKPOINT = 18;
const TRIANGLE = 22;
/** The chunks of a graph that is shown as a whole when it opens. */
const MOST_FITTED = 8;
/** The zoom below which the current statement is shown instead of the whole. */
const LEAST_FITTED = 0.25;

export interface GraphListener {
  /** The description of the selected statement, or of the one at the pointer. */
  described(text: string): void;
  /** The scale of the colors has changed. */
  scaled(scale: Scale | undefined): void;
  expanded(node: GraphNode): void;
  collapsed(statement: string): void;
  send(message: FromGraph): void;
}

export class GraphView {
  readonly canvas = element("canvas", { tabIndex: 0, role: "application", label: "Graph: arrow keys select a statement, Enter goes to its line" });
  private readonly viewport = new Viewport(this.canvas);
  private readonly worker: ChunkWorker;
  private graph: Graph | undefined;
  private layout: GraphLayout | undefined;
  private state: GraphState | undefined;
  private indices = new Map<string, number>();
  private executed: (node: number) => boolean = () => false;
  private current = -1;
  private selected = -1;
  private pointed = -1;
  private breakpoints: ReadonlySet<number> = new Set();
  private found: ReadonlySet<number> = new Set();
  private statistic = -1;
  private color: (node: GraphNode) => string | undefined = () => undefined;
  private drawRequested = false;
  /** The statement that moves to the middle when it is laid out. */
  private wanted = -1;
  private following = true;
  private showsStates = false;
  private inside: ReadonlySet<string> = new Set();
  /** The block that is fitted into the view while its chunks are laid out. */
  private fitted: string | undefined;

  constructor(
    worker: Worker,
    private readonly listener: GraphListener,
  ) {
    this.worker = new ChunkWorker(worker, (chunk, laid) => this.laidOut(chunk, laid), (message) => listener.described(message));
    new ResizeObserver(() => {
      this.viewport.resize();
      this.moved();
    }).observe(this.canvas);
    onThemeChange(() => {
      forgetColors();
      this.draw();
    });
    this.canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    handlePointer(this.canvas, {
      pointed: (offset) => this.point(this.layout?.nodeAt(this.viewport.toGraph(offset)) ?? -1),
      clicked: (offset) => this.click(this.viewport.toGraph(offset)),
      dragged: (x, y) => {
        this.viewport.pan(-x, -y);
        this.moved();
      },
    });
  }

  show(received: Graph): void {
    const before = new Set(this.graph?.blocks.map(({ id }) => id));
    const opened = received.blocks.filter(({ id, parent }) => !before.has(id) && (parent === null || before.has(parent)));
    this.graph = received;
    this.showStatements(opened.length === 1 ? opened[0].id : received.blocks[0].id);
  }

  /** Shows or hides states and constants.  Returns whether they are shown. */
  toggleStates(): boolean {
    this.showsStates = !this.showsStates;
    if (this.graph) {
      this.showStatements(this.graph.blocks[0].id);
    }
    return this.showsStates;
  }

  /** Shows the graph as a whole, or a block of it if it is large. */
  private showStatements(fitted: string): void {
    const graph = this.showsStates ? this.graph as Graph : withoutStates(this.graph as Graph);
    const selected = this.layout?.graph.nodes[this.selected]?.id;
    const middle = this.layout && this.nodeInMiddle();
    this.worker.startGraph();
    this.layout = new GraphLayout(graph, chunked(graph));
    this.indices = new Map(graph.nodes.map(({ id }, index) => [id, index]));
    this.selected = this.indices.get(selected ?? "") ?? -1;
    this.found = new Set();
    this.updateProgress();
    if (this.layout.chunked.chunks.length <= MOST_FITTED) {
      this.wanted = -1;
      this.fitted = fitted;
      this.canvas.ariaBusy = "true";
      this.fit();
      this.layOut();
      this.draw();
      return;
    }
    this.center(this.selected >= 0 ? this.selected : middle ? (this.indices.get(middle) ?? this.current) : this.current);
  }

  showState(state: GraphState, statistic: number): void {
    const before = this.current;
    const atEnd = state.ended && !this.state?.ended;
    this.state = state;
    this.statistic = statistic;
    this.updateProgress();
    this.inside = flaggedInside(state.flags);
    const colors = statistic >= 0 && state.statistics ? statisticColors(state, statistic) : undefined;
    this.color = colors?.color ?? (() => undefined);
    this.listener.scaled(colors?.scale);
    if (this.following && atEnd) {
      this.fitAll();
    } else if (this.following && this.fitted === undefined && this.current >= 0 && (this.current !== before || before < 0) && !this.isVisible(this.current)) {
      this.center(this.current);
    }
    this.draw();
  }

  showBreakpoints(lines: readonly number[]): void {
    this.breakpoints = new Set(lines);
    this.draw();
  }

  /** Marks the statements that contain a text.  Returns them in program order. */
  search(text: string): number[] {
    const nodes = text ? (this.layout?.graph.nodes ?? []) : [];
    const found = nodes.flatMap((node, index) => (matches(node, text.toLowerCase()) ? [index] : []));
    this.found = new Set(found);
    this.draw();
    return found;
  }

  select(node: number): void {
    this.selected = node;
    this.describe(node);
    if (this.isVisible(node)) {
      this.draw();
    } else {
      this.center(node);
    }
  }

  /** Turns following of the current statement on or off.  Returns whether it is on. */
  toggleFollowing(): boolean {
    this.following = !this.following;
    if (this.following && this.current >= 0) {
      this.center(this.current);
    }
    return this.following;
  }

  /** Shows the whole graph. */
  fitAll(): void {
    if (this.layout?.frames.length) {
      this.viewport.fit(this.layout.frames[0]);
      this.moved();
    }
  }

  /** Fits the whole graph into the view, or the block to fit if text would not be readable. */
  private fit(): void {
    const { viewport } = this;
    const [whole, ...inner] = (this.layout as GraphLayout).frames;
    if (!whole) {
      return;
    }
    const area = viewport.zoomFor(whole) < READABLE ? (inner.find(({ of }) => of.id === this.fitted) ?? whole) : whole;
    viewport.fit(area);
    if (viewport.zoom < LEAST_FITTED) {
      viewport.zoom = READABLE;
      viewport.center((this.layout as GraphLayout).middleOf(Math.max(0, this.current)));
    }
  }

  private updateProgress(): void {
    const { state, layout } = this;
    this.current = state ? currentNode(state, this.indices) : -1;
    this.executed = state && layout ? executedBy(state, layout.graph) : () => false;
  }

  /** Lays out the next chunk; each result starts the next one. */
  private layOut(): void {
    const chunk = this.layout?.nextChunk(this.wanted, this.viewport.middle.y) ?? -1;
    if (chunk >= 0) {
      this.worker.layOut(chunk, (this.layout as GraphLayout).chunked.chunks[chunk].input);
    }
  }

  private laidOut(chunk: number, laid: ChunkLayout): void {
    const { layout, viewport } = this;
    if (!layout) {
      return;
    }
    if (this.fitted !== undefined) {
      layout.set(chunk, laid);
      this.fit();
      if (layout.nextChunk(-1, 0) < 0) {
        this.fitted = undefined;
        this.canvas.ariaBusy = "false";
      }
      this.layOut();
      this.draw();
      return;
    }
    // The chunk in the middle stays in its place.
    const anchor = layout.between(viewport.middle.y, viewport.middle.y)[0] ?? 0;
    const before = layout.corners[anchor];
    layout.set(chunk, laid);
    const after = layout.corners[anchor];
    viewport.origin = { x: viewport.origin.x + after.x - before.x, y: viewport.origin.y + after.y - before.y };
    if (this.wanted >= 0 && layout.isLaidOut(this.wanted)) {
      this.center(this.wanted);
    }
    this.layOut();
    this.draw();
  }

  private center(node: number): void {
    const { layout } = this;
    if (!layout || !layout.graph.nodes.length) {
      return;
    }
    const shown = Math.max(0, node);
    this.viewport.center(layout.middleOf(shown));
    this.wanted = layout.isLaidOut(shown) ? -1 : shown;
    this.canvas.ariaBusy = String(this.wanted >= 0);
    this.layOut();
    this.draw();
  }

  private isVisible(node: number): boolean {
    return this.viewport.shows((this.layout as GraphLayout).middleOf(node));
  }

  /** The id of the first statement of the chunk in the middle. */
  private nodeInMiddle(): string | undefined {
    const { layout, viewport } = this;
    const chunk = layout?.chunked.chunks[layout.between(viewport.middle.y, viewport.middle.y)[0] ?? 0];
    return chunk && layout?.graph.nodes[chunk.first]?.id;
  }

  zoom(steps: number): void {
    this.viewport.zoomBy(ZOOM_STEP ** steps);
    this.moved();
  }

  /** The user has moved the viewport. */
  private moved(): void {
    this.wanted = -1;
    this.fitted = undefined;
    this.canvas.ariaBusy = "false";
    this.layOut();
    this.draw();
  }

  /** Draws once for each frame of the screen. */
  private draw(): void {
    if (!this.drawRequested) {
      this.drawRequested = true;
      requestAnimationFrame(() => {
        this.drawRequested = false;
        const { layout, state, current, selected, pointed, breakpoints, found, color, executed, inside } = this;
        const flagged = ({ id }: GraphNode) => state?.flags[id] !== undefined || inside.has(id);
        if (layout) {
          paint(this.canvas, layout, { state, current, selected, pointed, breakpoints, found, color, executed, flagged }, this.viewport);
        }
      });
    }
  }

  private point(node: number): void {
    if (node !== this.pointed) {
      this.pointed = node;
      this.describe(node >= 0 ? node : this.selected);
      this.canvas.style.cursor = node >= 0 ? "pointer" : "grab";
      this.draw();
    }
  }

  private click(point: Point): void {
    const { layout } = this;
    if (!layout) {
      return;
    }
    const index = layout.nodeAt(point);
    const node = layout.graph.nodes[index] as GraphNode | undefined;
    if (!node) {
      const collapsed = layout.frameTitledAt(point)?.of.node;
      if (collapsed) {
        this.listener.collapsed(collapsed);
      }
      return;
    }
    this.selected = index;
    this.describe(index);
    const offset = point.x - (layout.middleOf(index).x - layout.sizeOf(index)[0] / 2);
    if (offset < BREAKPOINT) {
      this.listener.send({ kind: "toggleBreakpoint", line: node.line });
    } else if (offset < BREAKPOINT + TRIANGLE && isExpandable(node)) {
      this.listener.expanded(node);
    } else {
      this.listener.send({ kind: "openLine", line: node.line });
    }
    this.draw();
  }

  private wheel(event: WheelEvent): void {
    event.preventDefault();
    if (event.ctrlKey || event.metaKey) {
      this.viewport.zoomBy(Math.exp(-event.deltaY / 300), event.offsetX, event.offsetY);
    } else {
      const [x, y] = event.shiftKey ? [event.deltaY, 0] : [event.deltaX, event.deltaY];
      this.viewport.pan(x, y);
    }
    this.moved();
  }

  private key(event: KeyboardEvent): void {
    const { layout, selected, listener } = this;
    if (event.ctrlKey || event.metaKey || event.altKey || !layout) {
      return;
    }
    const { nodes, blocks } = layout.graph;
    const node = nodes[selected] as GraphNode | undefined;
    const next = { ArrowDown: selected + 1, ArrowUp: selected - 1, Home: 0, End: nodes.length - 1 }[event.key];
    if (next !== undefined) {
      this.select(Math.max(0, Math.min(nodes.length - 1, selected < 0 ? Math.max(0, this.current) : next)));
    } else if (event.key === "Enter" && node) {
      listener.send({ kind: "openLine", line: node.line });
    } else if (event.key === "b" && node) {
      listener.send({ kind: "toggleBreakpoint", line: node.line });
    } else if (event.key === "ArrowRight" && node && isExpandable(node)) {
      listener.expanded(node);
    } else if (event.key === "ArrowLeft" && node) {
      const collapsed = blocks.find(({ id }) => id === node.block)?.node;
      if (collapsed) {
        listener.collapsed(collapsed);
      }
    } else if (event.key === "0") {
      this.fitAll();
    } else if (event.key === "+" || event.key === "=" || event.key === "-") {
      this.zoom(event.key === "-" ? -1 : 1);
    } else {
      return;
    }
    event.preventDefault();
  }

  private describe(index: number): void {
    const node = this.layout?.graph.nodes[index];
    const inside = node && this.inside.has(node.id) && !this.state?.flags[node.id] ? "  ·  NaN or Inf inside" : "";
    this.listener.described(node ? descriptionOf(node, this.state, this.statistic) + inside : "");
  }
}

function isExpandable({ kind }: GraphNode): boolean {
  return kind !== "op" && kind !== "end";
}
