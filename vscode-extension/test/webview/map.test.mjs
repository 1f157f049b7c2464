// The places of nodes in the graph map.

import assert from "node:assert/strict";
import { test } from "node:test";
import { bundled } from "../bundled.mjs";

const { laidOut } = await bundled("webview/map/layout");

/** A chain of nodes, of which one is the current statement. */
function chain(names, current) {
  const node = (id, index) => ({ id, cluster: "c", label: id, values: [`%${id}`], line: index, source: 0, state: id === current ? "current" : "next" });
  const edges = names.slice(1).map((to, index) => ({ from: names[index], to, value: `%${names[index]}` }));
  return { clusters: [{ id: "c", parent: null, node: null, title: "@main", before: 0, after: names.indexOf(current) }], nodes: names.map(node), edges };
}

const places = ({ nodes }) => nodes.map(({ x, y }) => [x, y]);

test("a step keeps the places of nodes, and shows their new states", () => {
  const before = laidOut(chain(["a", "b", "c"], "a"));
  const after = laidOut(chain(["a", "b", "c"], "b"));
  assert.deepEqual(places(after), places(before));
  assert.deepEqual(after.nodes.map(({ of }) => of.state), ["next", "current", "next"]);
  assert.equal(after.clusters[0].of.after, 1);
  assert.equal(before.lines.length, 2);
});

test("a graph with other nodes is laid out again", () => {
  const before = laidOut(chain(["a", "b"], "a"));
  const after = laidOut(chain(["a", "b", "a much longer name"], "a"));
  assert.equal(after.nodes.length, 3);
  assert.notDeepEqual(places(after), places(before));
});
