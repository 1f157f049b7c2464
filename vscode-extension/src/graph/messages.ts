// Messages between the graph tab and its page, and the answers of the debug server.

import type { SourceLine } from "../pages/messages";

/** An expanded graph or block; `node` is the statement that it replaces. */
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
  /** The type of the first result. */
  type: string;
  line: number;
  /** It only initializes or updates states, or computes a constant. */
  aside?: true;
}

/** [from, to, value, carried to the next iteration]: indices of nodes, -1 for an input of the graph.
 * The page adds the number of values, if there are several. */
export type GraphEdge = [number, number, string, boolean, number?];

/** The answer to `nncdbg/graph`: nodes in program order. */
export interface Graph {
  source: SourceLine["source"];
  blocks: Block[];
  nodes: GraphNode[];
  edges: GraphEdge[];
  /** The names of the program's states. */
  states: string[];
  leftOut: number;
}

/** The answer to `nncdbg/graphState`. */
export interface GraphState {
  /** The statement of each block on the stack, outermost first. */
  stack: { block: string; pc: number }[];
  /** The program is at its end. */
  ended: boolean;
  flags: Record<string, "nan" | "inf">;
  /** Largest absolute value, mean, std, share of zeros. */
  statistics?: Record<string, (number | null)[]>;
}

export type ToGraph =
  | { kind: "graph"; graph: Graph }
  | { kind: "state"; state: GraphState }
  | { kind: "breakpoints"; lines: number[] }
  | { kind: "status"; text: string };

export type FromGraph =
  | { kind: "ready" }
  | { kind: "openLine"; line: number }
  | { kind: "toggleBreakpoint"; line: number }
  | { kind: "choose"; expanded: string[]; statistics: boolean };
