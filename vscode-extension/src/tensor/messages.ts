// Messages between a tensor view and its page, and the answers of the debug server.

export type FromTensor =
  | { kind: "ready" }
  /** `kept`: the last answer of an earlier moment is sufficient. */
  | { kind: "request"; id: number; kept: boolean; request: TensorRequest }
  | { kind: "cancel"; id: number }
  | { kind: "setElement"; index: number[]; value: string }
  /** `data` is the content of a file: text for `csv`, base64 for `png`. */
  | { kind: "save"; format: FileFormat; data: string }
  | { kind: "pin"; pinned: boolean }
  /** The page needs the plot library. */
  | { kind: "loadLibrary" }
  /** Resolves names in the frame that is selected in VS Code. */
  | { kind: "useSelectedFrame" };

export type ToTensor =
  | Subject
  | { kind: "answer"; id: number; body: unknown }
  | { kind: "failed"; id: number; message: string }
  | { kind: "elementSet"; error: string | undefined }
  | { kind: "library"; text: string };

export type FileFormat = "csv" | "png";

/** Values can be requested only while the session is stopped. */
export type SessionState = "stopped" | "running" | "ended";

/** The moment of an answer, and the current statement at that moment, as `@main, line 12`. */
export interface Moment {
  /** A number that rises each time that values may change. */
  moment: number;
  place: string;
}

export interface Subject extends Moment {
  kind: "subject";
  expression: string;
  pinned: boolean;
  session: SessionState;
  /** The earlier moment of the kept answers, for a view that is not pinned or whose session has ended. */
  kept: Moment | undefined;
  /** Answers of this moment to the page's last request. */
  early: readonly EarlyAnswer[];
}

export interface EarlyAnswer {
  /** The `keyOf` the request. */
  key: string;
  body: unknown;
}

export interface TensorRequest {
  command: "nncdbg/slice" | "nncdbg/histogram" | "nncdbg/stats" | "nncdbg/compare" | "nncdbg/nonfinite";
  arguments: object;
  /** The version of the last answer: the server does not send an unchanged answer again. */
  known: number | undefined;
}

export function keyOf({ command, arguments: argument, known }: TensorRequest): string {
  return JSON.stringify([command, argument, known]);
}

/** The answer to `nncdbg/slice`, with numbers as bytes in base64. */
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
  /** The answer is the one with this version, and has no other fields. */
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
