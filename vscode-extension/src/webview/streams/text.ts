// The words of a statement in the timeline.

import type { StreamTimeline, TimedStatement } from "../../streams/messages";

const STATES = { "": "", current: "the current statement", next: "the next statement of its stream" };

/** What a screen reader and the tooltip say. */
export function described(timeline: StreamTimeline, { name, line, lane, events, state, duration }: TimedStatement): string {
  const time = timeline.measured ? (duration ? `median ${microseconds(duration)}` : "not measured yet") : "";
  return [name, `line ${line}`, timeline.lanes[lane].name, ...events, time, STATES[state]].filter((each) => each).join(", ");
}

/** A duration in microseconds, with three digits. */
export function microseconds(duration: number): string {
  const [value, unit] = duration >= 1e6 ? [duration / 1e6, "s"] : duration >= 1e3 ? [duration / 1e3, "ms"] : [duration, "µs"];
  return `${Number(value.toPrecision(3))} ${unit}`;
}

/** What the time axis is, and what is not shown. */
export function note({ measured, leftOut, lanes }: StreamTimeline): string {
  const time = measured
    ? "Widths are the median times of kernels."
    : "Each statement takes one unit of time; `set times on` in the debug console measures them.";
  const order = lanes.length > 1 ? "Statements begin as early as the schedule allows. Arrows are waits for events." : "The program has no schedule: one statement runs after the other.";
  return [order, time, leftOut ? `${leftOut} statements are not shown.` : ""].filter((each) => each).join(" ");
}
