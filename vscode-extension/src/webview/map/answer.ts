// What the server tells of the neighborhood of the current statement (`nncdbg/map`).

import type { Target } from "../../pages/messages";

export type Flag = "nan" | "inf";

export interface Cluster {
  id: string;
  parent: string | null;
  /** The statement that it is drawn in the place of. */
  node: string | null;
  title: string;
  kind: "graph" | "layer" | "loop" | "branch" | "micro";
  onStack: boolean;
  /** Statements that are not shown before and after those that are. */
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

export interface Answer {
  clusters: Cluster[];
  nodes: MapNode[];
  edges: Edge[];
  sources: Target["source"][];
}
