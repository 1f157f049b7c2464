// The answer of the server to `nncdbg/explain`.

import type { Target } from "../../pages/messages";
import type { Statistics } from "../../tensor/messages";

/** A plane of a tensor in blocks: its shape, and that of the cells. */
export interface Plane {
  of: [number, number];
  shape: [number, number];
  elements: string;
  data: string;
  flags: string;
}

export interface Cause {
  kind: "NaN" | "Inf";
  cause?: string;
  evidence?: string;
  hint?: string;
  /** The op of the micro program that it is at. */
  inside?: string;
  note?: string;
}

export interface Value {
  name: string;
  type?: string;
  stats?: Statistics;
  elements?: string;
  picture?: Plane;
  note?: string;
  origin?: Cause[];
}

export interface Step {
  line: number;
  text: string;
  op: string | null;
  graph: string;
  source: Target["source"];
  values: Value[];
}

export interface Answer {
  value: string | null;
  steps: Step[];
  more: boolean;
}
