// The graph tab: chunks and their positions, the viewport, and the progress of the run.

import assert from "node:assert/strict";
import { test } from "node:test";
import { bundled } from "../bundled.mjs";

const { GraphLayout, HEIGHT, Viewport, chunked, currentNode, descriptionOf, executedBy, flaggedInside, layOutChunk, matches, merged, statisticColors, withoutStates } = await bundled(
  "webview/graph/chunks",
  "webview/graph/graphLayout",
  "webview/graph/layout",
  "webview/graph/progress",
  "webview/graph/simplified",
  "webview/graph/viewport",
);

const node = (block, pc, more = {}) => ({ id: `${block}/${pc}`, block, kind: "op", label: "Relu", values: [`%v${pc}`], type: "f32[2,4]", line: pc + 10, ...more });
const block = (id, parent = null, statement = null) => ({ id, parent, node: statement, title: `@${id}`, kind: parent ? "loop" : "graph" });

/** A chain of statements in one block. */
function chain(count) {
  const nodes = Array.from({ length: count }, (_, pc) => node("main", pc));
  const edges = nodes.slice(1).map((_, index) => [index, index + 1, `%v${index}`, false]);
  return { source: {}, blocks: [block("main")], nodes, edges, leftOut: 0 };
}

/** A loop between two statements, expanded. */
const LOOP = {
  source: {},
  blocks: [block("main"), block("loop", "main", "main/1")],
  nodes: [node("main", 0), node("loop", 0), node("loop", 1), node("main", 2)],
  edges: [[0, 1, "%a", false], [1, 2, "%b", false], [2, 1, "%b", true], [2, 3, "%c", false], [-1, 0, "%x", false]],
  leftOut: 0,
};

/** The layout of a graph, with all chunks laid out. */
function laidOut(graph) {
  const layout = new GraphLayout(graph, chunked(graph));
  layout.chunked.chunks.forEach(({ input }, chunk) => layout.set(chunk, layOutChunk(input)));
  return layout;
}

test("a long block has chunks of 40 statements, with one line from chunk to chunk", () => {
  const { chunks, chunkOf, back } = chunked(chain(100));
  assert.deepEqual(chunks.map(({ first, end }) => [first, end]), [[0, 40], [40, 80], [80, 100]]);
  assert.equal(chunkOf[79], 1);
  assert.deepEqual(chunks[0].input.leave, [39]);
  assert.deepEqual(chunks[1].input.enter, [39]);
  assert.deepEqual(back, []);
});

test("a value that many later chunks read passes through the chunks in between", () => {
  const graph = chain(100);
  graph.edges.push([0, 95, "%v0", false], [0, 99, "%v0", false]);
  const [first, second, third] = chunked(graph).chunks.map(({ input }) => input);
  for (const [ports, expected] of [[first.leave, [0, 39]], [second.enter, [0, 39]], [second.leave, [0, 79]], [third.enter, [0, 79]]]) {
    assert.deepEqual([...ports].sort((a, b) => a - b), expected);
  }
});

test("blocks have their own chunks, and edges to the next iteration are separate", () => {
  const { chunks, back } = chunked(LOOP);
  assert.deepEqual(chunks.map(({ block: name, first, end }) => [name, first, end]), [["main", 0, 1], ["loop", 1, 3], ["main", 3, 4]]);
  assert.deepEqual(back, [[2, 1, "%b", true]]);
});

test("parallel edges are one edge with their number", () => {
  const edges = [[0, 1, "%a", false], [0, 1, "%b", false], [0, 1, "%c", false], [1, 0, "%a", true], [0, 2, "%a", false]];
  assert.deepEqual(merged(edges), [[0, 1, "%a", false, 3], [1, 0, "%a", true], [0, 2, "%a", false]]);
  const { chunks } = chunked({ ...chain(3), edges });
  assert.equal(chunks[0].input.edges.length, 2);
  assert.equal(chunks[0].of[0][4], 3);
});

test("states and constants are hidden, with their edges", () => {
  const graph = chain(4);
  graph.nodes[1].aside = true;
  graph.states = ["%w"];
  graph.edges = [[0, 1, "%v0", false], [1, 2, "%v1", false], [0, 2, "%v0", false], [3, 2, "%w", true], [2, 3, "%v2", false], [-1, 2, "%x", false]];
  const shown = withoutStates(graph);
  assert.deepEqual(shown.nodes.map(({ id }) => id), ["main/0", "main/2", "main/3"]);
  assert.deepEqual(shown.edges, [[0, 1, "%v0", false], [1, 2, "%v2", false], [-1, 1, "%x", false]]);
});

test("a statement is marked if a statement inside has NaN or Inf, at any depth", () => {
  const flags = { "0:a/b.c/3.0/1/2": "nan", "0:a/b.c/7": "inf" };
  assert.deepEqual([...flaggedInside(flags)].sort(), ["0:a/b.c/3", "0:a/b.c/3.0/1"]);
});

test("an area is fitted into the view, without enlargement", () => {
  const viewport = new Viewport({ clientWidth: 840, clientHeight: 640 });
  viewport.fit({ x: 100, y: 0, width: 1600, height: 600 });
  assert.equal(viewport.zoom, 0.5);
  assert.deepEqual(viewport.middle, { x: 900, y: 300 });
  viewport.fit({ x: 0, y: 0, width: 10, height: 10 });
  assert.equal(viewport.zoom, 1);
});

test("chunks are below each other, and a frame encloses those of its block", () => {
  const layout = laidOut(LOOP);
  const tops = LOOP.nodes.map((_, index) => layout.middleOf(index).y);
  assert.deepEqual(tops, [...tops].sort((a, b) => a - b));
  const loop = layout.frames.find(({ of }) => of.id === "loop");
  for (const [index, inside] of [false, true, true, false].entries()) {
    const { x, y } = layout.middleOf(index);
    assert.equal(y > loop.y && y < loop.y + loop.height, inside, `statement ${index}`);
    assert.ok(!inside || (x > loop.x && x < loop.x + loop.width));
  }
});

test("a statement is found at its place, and a frame at its title", () => {
  const layout = laidOut(LOOP);
  const middle = layout.middleOf(2);
  assert.equal(layout.nodeAt(middle), 2);
  assert.equal(layout.nodeAt({ x: middle.x, y: middle.y + HEIGHT }), -1);
  const { x, y } = layout.frames.find(({ of }) => of.id === "loop");
  assert.equal(layout.frameTitledAt({ x: x + 5, y: y + 5 }).of.id, "loop");
  assert.equal(layout.frameTitledAt({ x: x - 500, y }), undefined);
});

test("before its layout, a chunk is visible with an estimated height", () => {
  const layout = new GraphLayout(chain(100), chunked(chain(100)));
  assert.deepEqual(layout.between(0, layout.corners[0].y + 1), [0]);
  assert.equal(layout.nodeAt(layout.middleOf(0)), -1);
  const [, second] = layout.corners;
  assert.deepEqual(layout.between(second.y + 1, second.y + 2), [1]);
});

test("chunks are laid out from the wanted statement on, then by distance", () => {
  const layout = new GraphLayout(chain(100), chunked(chain(100)));
  assert.equal(layout.nextChunk(90, 0), 2);
  layout.set(2, layOutChunk(layout.chunked.chunks[2].input));
  assert.ok(layout.isLaidOut(90));
  assert.equal(layout.nextChunk(90, 0), 0);
  assert.equal(layout.nextChunk(-1, layout.corners[2].y), 1);
  [0, 1].forEach((chunk) => layout.set(chunk, layOutChunk(layout.chunked.chunks[chunk].input)));
  assert.equal(layout.nextChunk(-1, 0), -1);
});

test("zoom keeps the point at the pointer, within its limits", () => {
  const viewport = new Viewport({ clientWidth: 800, clientHeight: 600 });
  viewport.center({ x: 1000, y: 2000 });
  assert.deepEqual(viewport.middle, { x: 1000, y: 2000 });
  const offset = { offsetX: 200, offsetY: 100 };
  const before = viewport.toGraph(offset);
  viewport.zoomBy(2, 200, 100);
  assert.deepEqual(viewport.toGraph(offset), before);
  viewport.zoomBy(1000);
  assert.equal(viewport.zoom, 4);
  viewport.zoomBy(1e-9);
  assert.equal(viewport.zoom, 0.03);
});

test("a pan moves the graph by the same number of pixels at any zoom", () => {
  const viewport = new Viewport({ clientWidth: 800, clientHeight: 600 });
  viewport.zoomBy(2, 0, 0);
  viewport.pan(100, -50);
  assert.deepEqual(viewport.origin, { x: 50, y: -25 });
  assert.ok(viewport.shows({ x: 100, y: 30 }));
  assert.ok(!viewport.shows({ x: 55, y: 30 }), "at the edge");
});

test("the current statement is the innermost one that is shown", () => {
  const indices = new Map(LOOP.nodes.map(({ id }, index) => [id, index]));
  const stack = [{ block: "main", pc: 1 }, { block: "loop", pc: 1 }, { block: "hidden", pc: 9 }];
  assert.equal(currentNode({ stack, flags: {} }, indices), 2);
  assert.equal(currentNode({ stack: [], flags: {} }, indices), -1);
});

test("statements before the current one have run, and all of a block whose statement has run", () => {
  const executed = (stack) => LOOP.nodes.map((_, index) => executedBy({ stack, flags: {} }, LOOP)(index));
  assert.deepEqual(executed([{ block: "main", pc: 1 }, { block: "loop", pc: 1 }]), [true, true, false, false]);
  assert.deepEqual(executed([{ block: "main", pc: 2 }]), [true, true, true, false]);
  assert.deepEqual(executed([{ block: "main", pc: 0 }]), [false, false, false, false]);
});

test("statements have the color of their statistic, others none", () => {
  const { scale, color } = statisticColors({ stack: [], flags: { "main/3": "nan" }, statistics: { "main/0": [1, 0, 0, 0.5], "main/1": [100, 0, 0, 1], "main/2": [null, null, null, null], "main/3": [1, 1, 1, 1] } }, 3);
  assert.deepEqual([scale.low, scale.high, scale.threshold], [0.5, 1, undefined]);
  assert.notEqual(color({ id: "main/0" }), color({ id: "main/1" }));
  assert.match(color({ id: "main/0" }), /^rgb\(\d+, \d+, \d+\)$/);
  assert.equal(color({ id: "main/2" }), undefined);
  assert.equal(color({ id: "main/9" }), undefined);
  assert.notEqual(statisticColors({ stack: [], flags: {}, statistics: { a: [1, 2, 3, 4] } }, 0).scale.threshold, undefined, "other statistics have a logarithmic scale");
});

test("a search finds ops, values and shapes", () => {
  const relu = node("main", 3);
  assert.ok(["relu", "%v3", "[2,4]"].every((text) => matches(relu, text)));
  assert.ok(!matches(relu, "conv"));
});

test("a description has the line, the values, the flag and the chosen statistic", () => {
  const state = { stack: [], flags: { "main/3": "nan" }, statistics: { "main/3": [1.23456, 0, 0, 0] } };
  assert.equal(descriptionOf(node("main", 3), state, 0), "line 13: Relu  ·  %v3  ·  f32[2,4]  ·  contains NaN  ·  largest absolute value 1.235");
  assert.equal(descriptionOf(node("main", 3, { values: [] }), undefined, -1), "line 13: Relu  ·  f32[2,4]");
});
