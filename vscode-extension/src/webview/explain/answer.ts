// The answer to `nncdbg/explain`.

import type { SourceLine } from "../../pages/messages";
import type { Statistics } from "../../tensor/messages";

/** A picture of a tensor: its shape, and that of the cells, which are blocks of elements. */
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
  /** The op of the micro program at which it originates. */
  inside?: string;
  note?: string;
}

export interface ExplainedValue {
  name: string;
  type?: string;
  stats?: Statistics;
  elements?: string;
  picture?: Plane;
  note?: string;
  origin?: Cause[];
}

export interface ExplainedStep {
  line: number;
  text: string;
  op: string | null;
  graph: string;
  source: SourceLine["source"];
  values: ExplainedValue[];
}

export interface Explanation {
  value: string | null;
  steps: ExplainedStep[];
  more: boolean;
}
