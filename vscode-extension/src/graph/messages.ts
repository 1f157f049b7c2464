// What the graph tab and its host tell each other, and what the server answers.

import type { Target } from "../pages/messages";

/** A graph or a block in it that is shown open, in place of the statement `node`. */
export interface Block {
  id: string;
  parent: string | null;
  node: string | null;
  title: string;
  kind: "graph" | "layer" | "loop" | "branch";
}

export interface GraphNode {
  id: string;
  block: string;
  kind: "op" | "layer" | "loop" | "branch" | "end";
  label: string;
  values: string[];
  /** Of the first result. */
  type: string;
  line: number;
}

/** [from, to, value, carried to the next iteration]: positions of nodes, -1 for an input of the graph. */
export type GraphEdge = [number, number, string, boolean];

/** The answer to `nncdbg/graph`: nodes in the order of the program. */
export interface Graph {
  source: Target["source"];
  blocks: Block[];
  nodes: GraphNode[];
  edges: GraphEdge[];
  leftOut: number;
}

/** The answer to `nncdbg/graphState`. */
export interface State {
  /** The statement of each block on the stack, the outermost first. */
  stack: { block: string; pc: number }[];
  flags: Record<string, "nan" | "inf">;
  /** Largest absolute value, mean, std, share of zeros. */
  statistics?: Record<string, (number | null)[]>;
}

export type ToTab =
  | { kind: "graph"; graph: Graph }
  | { kind: "state"; state: State }
  | { kind: "breakpoints"; lines: number[] }
  | { kind: "say"; words: string };

export type FromTab =
  | { kind: "ready" }
  | { kind: "line"; line: number }
  | { kind: "breakpoint"; line: number }
  | { kind: "ask"; open: string[]; statistics: boolean };
