// Messages between the page *Run Curves* and the extension.

import type { Run } from "./log";

/** The values of one name over the steps of a run, with those of its parents before the fork. */
export interface PageTrack {
  name: string;
  part: string;
  steps: Float64Array;
  values: Float64Array;
}

export interface PageRun extends Pick<Run, "number" | "name" | "status" | "parent" | "parent_step" | "steps"> {
  tracks: PageTrack[];
}

export type ToCurves = { kind: "runs"; file: string; runs: PageRun[]; error: string } | { kind: "choose"; run: number };

export type FromCurves = { kind: "ready" } | { kind: "openStep"; run: number; step: number };
