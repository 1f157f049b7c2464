// The progress of the run in a graph: the current statement, executed statements, and colors by statistics.

import type { Graph, GraphNode, GraphState } from "../../graph/messages";
import { type Scale, painter, scaleOf } from "../color/colors";

/** The statistics by which statements can be colored, in the order of the server. */
export const STATISTICS = ["largest absolute value", "mean", "std", "share of zeros"];
const MEAN = 1;
const SHARE_OF_ZEROS = 3;

/** The index of the innermost statement on the stack that the graph shows; -1 if it shows none. */
export function currentNode({ stack }: GraphState, indices: ReadonlyMap<string, number>): number {
  return stack.reduce((found, { block, pc }) => indices.get(`${block}/${pc}`) ?? found, -1);
}

/** Whether a statement was executed.  A block that is not on the stack was executed if its statement was. */
export function executedBy({ stack }: GraphState, { blocks, nodes }: Graph): (node: number) => boolean {
  const current = new Map(stack.map(({ block, pc }) => [block, pc]));
  const byId = new Map(blocks.map((each) => [each.id, each]));
  const executed = (block: string, pc: number): boolean => {
    const at = current.get(block);
    if (at !== undefined) {
      return pc < at;
    }
    const { parent, node } = byId.get(block) ?? { parent: null, node: null };
    return parent !== null && node !== null && executed(parent, pcOf(node));
  };
  return (index) => executed(nodes[index].block, pcOf(nodes[index].id));
}

function pcOf(id: string): number {
  return Number(id.slice(id.lastIndexOf("/") + 1));
}

/** The statements that contain a statement with NaN or Inf, at any depth, by the id of each. */
export function flaggedInside(flags: GraphState["flags"]): Set<string> {
  const found = new Set<string>();
  for (let id of Object.keys(flags)) {
    // The id of a block ends with that of its statement, and the number of a branch or body.
    for (let inner = INNER.exec(id); inner && !found.has(inner[1]); inner = INNER.exec(id)) {
      id = inner[1];
      found.add(id);
    }
  }
  return found;
}

const INNER = /^(.+\/\d+)(?:\.\d+)?\/\d+$/;

/** The color of NaN and Inf among those of a statistic. */
export const NONFINITE = "rgb(205, 49, 49)";

/** The CSS color of each statement by a statistic, and their scale. */
export function statisticColors({ statistics = {}, flags }: GraphState, statistic: number): { scale: Scale; color: (node: GraphNode) => string | undefined } {
  const values = Object.values(statistics).map((each) => each[statistic] ?? NaN);
  const scale = scaleOf(values, statistic === MEAN ? "diverging" : "even", statistic !== SHARE_OF_ZEROS);
  const pixelOf = painter(scale);
  const color = ({ id }: GraphNode) => {
    if (flags[id]) {
      return NONFINITE;
    }
    const value = statistics[id]?.[statistic] ?? undefined;
    if (value === undefined) {
      return undefined;
    }
    const pixel = pixelOf(value, 0);
    return `rgb(${pixel & 255}, ${(pixel >> 8) & 255}, ${(pixel >> 16) & 255})`;
  };
  return { scale, color };
}

/** Whether a statement contains a text, in lower case. */
export function matches({ label, values, type }: GraphNode, text: string): boolean {
  return `${label} ${values.join(" ")} ${type}`.toLowerCase().includes(text);
}

export function descriptionOf({ id, line, label, values, type }: GraphNode, state: GraphState | undefined, statistic: number): string {
  const flag = state?.flags[id];
  const value = statistic >= 0 ? (state?.statistics?.[id]?.[statistic] ?? undefined) : undefined;
  const shown = value === undefined ? "" : `${STATISTICS[statistic]} ${Number(value.toPrecision(4))}`;
  const parts = [`line ${line}: ${label}`, values.join(", "), type, flag === "nan" ? "contains NaN" : flag ? "contains Inf" : "", shown];
  return parts.filter((each) => each).join("  ·  ");
}
