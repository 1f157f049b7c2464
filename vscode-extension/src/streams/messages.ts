// Messages between the tab of the streams and its page, and the answer of the debug server.

import type { SourceLine } from "../pages/messages";

export interface Lane {
  /** `host` or `s0`. */
  name: string;
  device: string;
  /** What its next statement waits for, such as `waits for e2 of line 9`. */
  waits: string[];
}

export interface TimedStatement {
  lane: number;
  start: number;
  duration: number;
  name: string;
  line: number;
  /** Such as `wait e2` and `record e3`. */
  events: string[];
  state: "" | "current" | "next";
}

/** [event, from, to]: positions of statements. */
export type Wait = [string, number, number];

/** [access, value, first, second]: an access such as `write-read`, and positions of statements. */
export type Race = [string, string, number, number];

/** The answer to `nncdbg/streams`. */
export interface StreamTimeline {
  source: SourceLine["source"];
  /** Times are median microseconds of kernels; otherwise each statement takes one unit. */
  measured: boolean;
  leftOut: number;
  lanes: Lane[];
  statements: TimedStatement[];
  waits: Wait[];
  races: Race[];
}

export type ToStreams = { kind: "timeline"; timeline: StreamTimeline } | { kind: "status"; text: string };

export type FromStreams = { kind: "ready" } | { kind: "openLine"; line: number };
