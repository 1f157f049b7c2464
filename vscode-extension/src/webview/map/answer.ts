// The answer to `nncdbg/map`: the neighborhood of the current statement.

import type { SourceLine } from "../../pages/messages";

export type Flag = "nan" | "inf";

export interface Cluster {
  id: string;
  parent: string | null;
  /** The statement that it replaces. */
  node: string | null;
  title: string;
  kind: "graph" | "layer" | "loop" | "branch" | "micro";
  onStack: boolean;
  /** The numbers of statements before and after that are not shown. */
  before: number;
  after: number;
}

export interface MapNode {
  id: string;
  cluster: string;
  kind: "op" | "layer" | "loop" | "branch" | "end" | "input";
  label: string;
  values: string[];
  line: number;
  source: number;
  state: "done" | "current" | "next";
  flag?: Flag;
}

export interface Edge {
  from: string;
  to: string;
  value: string;
  carried?: boolean;
  flag?: Flag;
}

export interface Neighborhood {
  clusters: Cluster[];
  nodes: MapNode[];
  edges: Edge[];
  sources: SourceLine["source"][];
}
