// What the tensor view and its host tell each other.

export type Request = "nncdbg/slice" | "nncdbg/histogram" | "nncdbg/stats" | "nncdbg/compare" | "nncdbg/nonfinite";

/** From the view. */
export type FromView =
  | { kind: "ready" }
  /** `kept`: as it was answered when it was last asked. */
  | ({ kind: "ask"; id: number; kept: boolean } & Question)
  | { kind: "abandon"; id: number }
  | { kind: "set"; index: number[]; value: string }
  /** Contents of a file: `csv` is text, `png` base64. */
  | { kind: "save"; format: SavedFormat; data: string }
  | { kind: "pin"; pinned: boolean }
  /** Something is to be plotted: the library is needed. */
  | { kind: "plot" }
  | { kind: "here" };

export type SavedFormat = "csv" | "png";

/** Where the session stands: values can be asked for only while `still`. */
export type Standing = "still" | "moving" | "over";

/** What is looked at, and when.  `moment` rises each time that the values may be other ones. */
export interface Subject {
  kind: "subject";
  expression: string;
  pinned: boolean;
  standing: Standing;
  moment: number;
  /** The place where the program stands, as `@main, line 12`. */
  place: string;
  /** What a view that is not pinned goes on to show: answers of an earlier moment. */
  kept: { moment: number; place: string } | undefined;
  /** Answers of this moment to what the view asked at the one before. */
  early: readonly Early[];
}

/** An answer, by `keyOf` its question. */
export interface Early {
  key: string;
  body: unknown;
}

export interface Question {
  request: Request;
  arguments: object;
  /** The version of the answer that is still there. */
  known: number | undefined;
}

export function keyOf({ request, arguments: asked, known }: Question): string {
  return JSON.stringify([request, asked, known]);
}

/** To the view. */
export type ToView =
  | Subject
  | { kind: "answer"; id: number; body: unknown }
  | { kind: "failed"; id: number; message: string }
  | { kind: "set"; error: string | undefined };

/** To the page of the view: the script of the plotting library. */
export interface ToLibrary {
  kind: "library";
  text: string;
}

/** The answer to `nncdbg/slice`, with numbers as bytes. */
export interface Slice {
  type: string;
  dtype: string;
  sourceShape: number[];
  stride: number[];
  shape: number[];
  reduce: "stride" | Reduction;
  data: string | (string | number)[];
  elements?: string;
  flags?: string;
  nan?: number;
  posinf?: number;
  neginf?: number;
  version?: number;
  /** The answer is the one with this version; nothing else is in it. */
  unchanged?: boolean;
}

export type Reduction = "mean" | "min" | "max" | "absmax" | "range";

export interface Statistics {
  min: number | null;
  max: number | null;
  mean: number | null;
  std: number | null;
  nan: number;
  posinf: number;
  neginf: number;
  count: number;
}

export interface Histogram {
  edges: number[];
  counts: number[];
  nan: number;
  posinf: number;
  neginf: number;
}

export interface Comparison {
  max_abs: number | null;
  max_rel: number | null;
  mismatched: number;
  nan_mismatch: number;
  inf_mismatch: number;
  count: number;
  worst: number[] | null;
}
