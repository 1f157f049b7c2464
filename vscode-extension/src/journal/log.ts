// The runs of a journal as nncdbg prints them.

/** The values of one name, of the training or of the test part. */
export interface Track {
  name: string;
  part: string;
  steps: number[];
  /** JSON has no NaN and Inf: they are texts, as `numberOf` reads them. */
  values: (number | string | null)[];
}

export interface Checkpoint {
  run: number;
  step: number;
  epoch: number | null;
  bytes: number;
}

export interface RunEvent {
  kind: string;
  step: number | null;
  message: string;
}

export type RunStatus = "running" | "ended" | "failed" | "interrupted" | "lost";

export interface Run {
  number: number;
  name: string;
  kind: string;
  status: RunStatus;
  /** The run that this one is forked from, at the start of a step. */
  parent: number | null;
  parent_step: number | null;
  started: string;
  ended: string | null;
  steps: number;
  tracks: Track[];
  checkpoints: Checkpoint[];
  events: RunEvent[];
}

/** All runs of a journal; values and checkpoints of a fork begin with those of its parents. */
export interface Log {
  journal: string;
  runs: Run[];
}

/** A printed value; NaN and Inf are texts such as "-Infinity". */
export function numberOf(value: number | string | null): number {
  return value === null ? NaN : Number(value);
}

/** The address of a run, or of the start of a step, as `nncdbg` reads it. */
export function addressOf(file: string, run: number, step?: number): string {
  return `${file}#${run}${step === undefined ? "" : `@${step}`}`;
}
